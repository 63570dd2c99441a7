"""An entry of the registry: the compiled op, its reference, and inputs for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from dsbench.kernels.check.inputs import Inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """`make_inputs(generator, case)` gives keyword arguments for both; `cases` are deliberately odd shapes.

    Ops whose names begin with the same word are results of one launch: a family, timed by its first.
    """

    name: str
    compiled: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    make_inputs: Callable[..., Inputs]
    cases: tuple[Any, ...]
    tolerance: float  # absolute; 0 for tokens, which must be equal
    why: str  # where the tolerance comes from
    cuda: Callable[..., Tensor] | None = None  # what `compiled` runs on CUDA tensors, where that is a Triton kernel
    cost: Callable[..., tuple[float, float]] | None = None  # of inputs: bytes moved at least, floating-point operations
    bind: Callable[[Inputs], Callable[[], Any]] | None = None  # the call to time, if `compiled` also prepares something
    unfused: Callable[[Inputs], Callable[[], Any]] | None = None  # timed beside it in place of the reference

    @property
    def family(self) -> str:
        return self.name.split()[0]

    def call(self, inputs: Inputs) -> Callable[[], Any]:
        """What is timed: `compiled` without what a runtime does once."""
        return partial(self.compiled, **inputs) if self.bind is None else self.bind(inputs)
