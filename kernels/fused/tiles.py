"""Which passes run on fused products, and the tile of rows by outputs of each. No torch, no triton.

All thresholds and tile sizes to tune stand here. The bits of a row follow from its tile, hence from M and the shape.
"""

from __future__ import annotations

from dataclasses import dataclass

# most rows of a pass that is fused, for hidden sizes up to NARROW and above; beyond, the library's products win
NARROW, NARROW_ROWS, WIDE_ROWS = 1024, 896, 1
SMALL_ROWS, SMALL_WEIGHTS = 0, 4_000_000  # rows up to which a product of so many weights is not the library's
WHOLE_HEADS = 1024  # hidden sizes up to which heads that are normed are turned where they are made
MULTIPROCESSORS = 132
ROWS, OUTPUTS = (128, 64), (128, 64, 32)  # of a tile of more than a few rows
LONG, LONG_OUTPUTS = 1024, (32,)  # inner sizes from which a tile is narrow: 64 outputs took twice as long
ALONE = 4  # rows up to which each has programs of its own, which read the weights again
FEW, FEW_ROWS = 8, 16  # rows of a tile whose weights are all in flight at once, and up to which there are such tiles
FEW_OUTPUTS, HELD = 16, 128  # outputs of such a tile, and weights of a thread: half or twice as many were slower
ONE = (16, 8, 4, 2)  # outputs of a program for one row
FILL, WIDE_FILL = 100, 200  # programs that its product should have; one of SMALL_WEIGHTS
CHUNK = 2048  # weights of an output that are in flight at once, of one row
SPAN = 2048  # weights of an output that come to the L2 cache before the wait, of more rows
SHARED = 98_304  # bytes of shared memory for a program's stages, so that two programs fit
STAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """BM rows by BN outputs, BK of K at a time; of a few rows in as many slices as there are warps."""

    rows: int
    outputs: int
    inner: int
    warps: int
    stages: int
    slices: int = 0


def fuses(hidden: int, rows: int) -> bool:
    """Whether a pass of so many rows of a model of this width is run by fused kernels."""
    return 0 < rows <= (NARROW_ROWS if hidden <= NARROW else WIDE_ROWS)


def is_small(rows: int, weights: int) -> bool:
    """Whether a product alone is the fused kernels' rather than the library's."""
    return 0 < rows <= SMALL_ROWS and SMALL_WEIGHTS <= weights < 2**31  # offsets are 32-bit


def turns_in_product(hidden: int, *, normed: bool) -> bool:
    """Whether the qkv product turns its own heads. Heads that are normed first are whole in a tile, and few tiles."""
    return hidden <= WHOLE_HEADS or not normed


def tile_for(rows: int, outputs: int, inner: int, *, whole: int = 0, size: int = 2) -> Tile:
    """The tile of a product of `rows` x `inner` by `inner` x `outputs`, of numbers of `size` bytes.

    `whole`: outputs that must lie in one tile.
    """
    if rows <= ALONE and not whole:
        return _of_one(rows, outputs, inner)
    if rows <= FEW_ROWS and not whole:
        return _of_few(inner)
    widths = (whole,) if whole else LONG_OUTPUTS if inner >= LONG else OUTPUTS
    sizes = [(m, n) for m in ROWS if m == ROWS[-1] or m <= rows for n in widths]
    m, n = min(sizes, key=lambda size: _reads(rows, outputs, *size))
    depth = 64
    stage = (m + n) * depth * size
    stages = max(2, min(-(-inner // depth) + 1, STAGES, 1 + SHARED // stage))
    return Tile(rows=m, outputs=n, inner=depth, warps=8 if m * n >= 8192 else 4, stages=stages)


def _reads(rows: int, outputs: int, m: int, n: int) -> int:
    """What the busiest multiprocessor reads, in rows of K numbers: such products wait for the L2 cache."""
    programs = -(-rows // m) * -(-outputs // n)
    return -(-programs // MULTIPROCESSORS) * (m + n)


def _of_one(rows: int, outputs: int, inner: int) -> Tile:
    """64 weights a thread at most, eight of them side by side: they and their products stay in registers."""
    fill = (FILL if outputs * inner < SMALL_WEIGHTS else WIDE_FILL) // rows
    depth = max(32, min(CHUNK, _power(inner)))
    wide = next((n for n in ONE if outputs >= n * fill and n * depth <= 16_384), ONE[-1])
    warps = max(1, min(8, max(depth // 256, wide * depth // 2048)))
    return Tile(rows=1, outputs=wide, inner=depth, warps=warps, stages=1)


def _of_few(inner: int) -> Tile:
    """A slice is 16 numbers of K at least, the depth of a tensor core's product."""
    depth = max(32, min(CHUNK, _power(inner)))
    warps = max(1, min(FEW_OUTPUTS * depth // (32 * HELD), depth // 16))
    return Tile(rows=FEW, outputs=FEW_OUTPUTS, inner=depth, warps=warps, stages=1, slices=warps)


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(0, n - 1).bit_length()
