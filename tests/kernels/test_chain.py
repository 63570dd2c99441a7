"""The law of chained launches, in the code compiled for sm_90: nothing but weights is touched before the wait.

Triton's interpreter has no such waits; its compiler needs no device.
"""

from __future__ import annotations

import re
from importlib import import_module

import pytest

pytestmark = pytest.mark.slow  # a second a kernel
TILE = {"K": 576, "T": 36, "PADDED": 64, "FETCH": 1024}
ONE = TILE | {"BM": 1, "BN": 16, "BK": 1024, "SLICES": 0}
FEW = TILE | {"BM": 8, "BN": 16, "BK": 1024, "SLICES": 4}
MANY = TILE | {"BM": 64, "BN": 32, "BK": 64, "SLICES": 0}
HEADS = {"HEADS": 9, "KV_HEADS": 3, "PAGE": 16, "HALF": 32}
ATTENTION = {
    "BEHIND": 1 << 30,
    "AHEAD": 1,
    "REQUESTS": 0,
    "CHUNK": 256,
    "KV_HEADS": 3,
    "GROUP": 3,
    "WIDTH": 64,
    "PADDED": 64,
}
TILED = {"ROWS": 5, "PAGE": 64, "LANES": 16, "KEYS": 64, "WINDOW": False, "CAP": 0.0, "SPLIT": True}
WIDE = {"p_squares": "fp32", "p_made": "fp32", "p_cos": "fp32", "p_sin": "fp32", "p_tops": "fp32", "p_sums": "fp32"}
WIDE |= dict.fromkeys(("p_position", "p_cache_index", "p_ids"), "i64") | dict.fromkeys(("p_pages", "p_cu_rows"), "i32")
WIDE |= {"p_context": "i32"}
KERNELS = [
    *(("fused.products", "_qkv_kernel", tile | HEADS) for tile in (ONE, FEW, MANY)),
    *(("fused.products", "_gate_kernel", tile | {"WIDTH": 1536}) for tile in (ONE, FEW, MANY)),
    *(("fused.products", "_product_kernel", tile | {"N": 576, "p_squares": None}) for tile in (ONE, FEW, MANY)),
    ("fused.products", "_embed_kernel", {"D": 576, "BLOCK": 1024}),
    ("norm", "_add_norm_kernel", {"D": 576, "BLOCK": 1024}),
    ("swiglu", "_swiglu_kernel", {"WIDTH": 1536, "BLOCK": 1024}),
    ("rope", "_rotate_kernel", HEADS | {"PADDED": 32, "TILE": 16}),
    ("attention", "_attend_kernel", ATTENTION | TILED),
    ("attention", "_merge_kernel", ATTENTION | {"LANES": 4}),
]


def compiled(module, name, constants, early=True):
    """PTX of a kernel in bf16."""
    triton = pytest.importorskip("triton")
    kernel = getattr(import_module(f"dsbench.kernels.{module}_triton"), name)
    names = kernel.arg_names
    constants = {"PDL": 2 if early else 1} | constants
    types = {n: f"*{WIDE.get(n, 'bf16')}" if n.startswith("p_") else "i32" for n in names}
    types |= {n: "fp32" for n in ("eps", "scale") if n in names} | dict.fromkeys(constants, "constexpr")
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if types[n].startswith("*")}
    source = triton.compiler.ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=aligned)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    return triton.compile(source, target=target, options={"num_warps": 4, "num_stages": 3}).asm["ptx"]


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize(("module", "name", "constants"), KERNELS, ids=lambda x: x if isinstance(x, str) else "")
def test_a_chained_kernel_touches_nothing_but_weights_before_it_waits(module, name, constants, early):
    ptx = compiled(module, name, constants, early)
    assert len(re.findall(r"griddepcontrol\.wait", ptx)) == len(re.findall(r"griddepcontrol\.launch", ptx)) == 1
    before, after = ptx.split("griddepcontrol.wait")
    assert ("griddepcontrol.launch" in before) is early
    touched = [line for line in before.splitlines() if re.search(r"(ld|st|red|atom)\.global|cp\.async", line)]
    assert "ret;" not in before, "a program that ends without waiting lets others pass"
    in_flight = constants.get("BM") in (1, 8)
    assert bool(touched) == in_flight
    assert not any("st.global" in line for line in touched) and "st.global" in after
    assert ("prefetch.global.L2" in before) == ("BM" in constants and not in_flight)


@pytest.mark.parametrize("tile", [ONE, FEW])
def test_only_its_weights_are_read_by_a_product_of_few_rows_before_it_waits(tile):
    """The sixteen outputs of 1024 numbers, in loads of eight, by 128 threads: and not a load more."""
    before = compiled("fused.products", "_product_kernel", tile | {"N": 576, "p_squares": None}).split(
        "griddepcontrol.wait"
    )[0]
    assert len(re.findall(r"ld\.global\S*\.v4", before)) == len(re.findall(r"ld\.global", before)) == 16
