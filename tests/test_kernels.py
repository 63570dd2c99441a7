"""Every op of the registry against its reference, on odd shapes with poisoned leftovers."""

from __future__ import annotations

import pytest
import torch

from dsbench.kernels.attention import paged_attention
from dsbench.kernels.registry import registry


@pytest.mark.parametrize(
    ("op", "case"), [(op, case) for op in registry() for case in op.cases], ids=lambda x: getattr(x, "name", str(x))
)
def test_op_equals_its_reference(op, case):
    inputs = op.make_inputs(torch.Generator().manual_seed(5), case)
    made, wanted = op.compiled(**inputs), op.reference(**inputs)
    assert made.shape == wanted.shape and made.dtype == wanted.dtype
    assert torch.isfinite(made.double()).all(), "poison reached the result"
    assert (made.double() - wanted.double()).abs().max() <= op.tolerance, op.why


def test_attention_of_a_request_does_not_depend_on_its_neighbours():
    """Bitwise: the rows of one request alone, and among others."""
    op = next(op for op in registry() if op.name == "paged_attention")
    inputs = op.make_inputs(torch.Generator().manual_seed(1), op.cases[3])
    whole = paged_attention(**inputs)
    cu_rows = inputs["cu_rows"].tolist()
    for r, (first, last) in enumerate(zip(cu_rows, cu_rows[1:], strict=False)):
        alone = inputs | {
            "q": inputs["q"][first:last], "pages": inputs["pages"][r : r + 1], "context": inputs["context"][r : r + 1],
            "cu_rows": torch.tensor([0, last - first], dtype=torch.int32),
        }  # fmt: skip
        assert torch.equal(paged_attention(**alone), whole[first:last])
