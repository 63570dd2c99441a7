"""Other batches that hold rows of a batch, and whose results must have the same bits."""

from __future__ import annotations

import torch


def picked(x, parts):
    """Rows first:first + count of request r, for each (r, first, count), as a batch, and which rows of `x` they are.

    The rows before them count as context, which is the same to a causal row.
    """
    device, owners = x["q"].device, [r for r, _, _ in parts]
    rows = torch.cat([torch.arange(n) + int(x["cu_rows"][r]) + first for r, first, n in parts]).to(device)
    cu_rows = torch.tensor([0, *torch.tensor([n for _, _, n in parts]).cumsum(0).tolist()], dtype=torch.int32)
    passed = torch.tensor([first for _, first, _ in parts], dtype=torch.int32, device=device)
    mine = {"cu_rows": cu_rows.to(device), "pages": x["pages"][owners], "context": x["context"][owners] + passed}
    return x | mine | {"q": x["q"][rows]}, rows


def padded(x, requests, rows):
    """As a captured pass runs it: requests without rows, poisoned rows after the last, a wider page table."""
    r, n = x["pages"].shape
    pages = x["pages"].new_full((r + requests, n + 5), x["keys"].shape[0] - 1)
    pages[:r, :n] = x["pages"]
    return x | {
        "q": torch.cat([x["q"], x["q"].new_full((rows, *x["q"].shape[1:]), float("nan"))]),
        "pages": pages,
        "cu_rows": torch.cat([x["cu_rows"], x["cu_rows"][-1:].expand(requests)]),
        "context": torch.cat([x["context"], x["context"].new_zeros(requests)]),
    }


def batches_alike(x):
    """(name, inputs, keyword arguments, rows of `x` that they begin with)."""
    counts = x["cu_rows"].diff().tolist()
    live = [(r, 0, n) for r, n in enumerate(counts) if n]
    rows = torch.arange(sum(counts), device=x["q"].device)
    for most in (max(counts), 3 * max(counts)):
        yield f"most_rows={most}", x, {"most_rows": most}, rows
    for wanted in live:
        yield f"request {wanted[0]} alone", *swapped(picked(x, [wanted]), most_rows=wanted[2])
    yield "backwards", *swapped(picked(x, live[::-1]))
    yield "among idle requests", padded(x, 3, 7), {}, rows
    yield "in a graph", padded(x, 5, 9), {"most_rows": max(counts)}, rows
    if x["causal"]:
        singles = [(r, i, 1) for r, _, n in live for i in range(n)]
        yield "row by row", *swapped(picked(x, singles), most_rows=1)
        yield "first rows only", *swapped(picked(x, [(r, 0, -(-n // 2)) for r, _, n in live]))
        yield (
            "last rows only",
            *swapped(picked(x, [(r, n // 2, n - n // 2) for r, _, n in live]), most_rows=max(counts)),
        )


def swapped(batch, **kwargs):
    return batch[0], kwargs, batch[1]


def check_alike(attend, x):
    """`attend` gives each row of `x` the same bits in every one of them."""
    whole = attend(**x)
    for name, inputs, kwargs, rows in batches_alike(x):
        made = attend(**inputs, **kwargs)
        assert torch.equal(made[: rows.shape[0]], whole[rows]), name
    return whole
