"""A drafter's card: its parts, its training and its measurements. `card.json` -> README.md.

No torch. Intervals in a card are [value, low, high], 95%.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TRAINED = (
    ("loss", "loss"),
    ("ce", "cross-entropy"),
    ("l1", "L1"),
    ("confidence", "confidence"),
    ("free", "token-free confidence"),
)


def card_text(card: Mapping[str, Any]) -> str:
    """The card for people; without measurements, the training alone."""
    parts = [_title(card), _training(card), _validation(card)]
    measured = card.get("measured")
    if measured:
        parts += [_lengths(measured), _depths(measured), _times(measured)]
    return "\n\n".join([part for part in parts if part] + [f"Licence: {card['licence']}"]) + "\n"


def _title(card: Mapping[str, Any]) -> str:
    block = "DFlash" if card["options"]["head"] == "none" else "DSpark"
    kind = "chain" if card["options"]["kind"] == "mtp" else block
    return (
        f"# A {kind} drafter for {card['target']}\n\n{_what_it_is(card['options'])} {card['draft_vocab']} draft ids.\n"
        f"It fits the target with digest `{card['target_digest']}` and no other; embedding and head are that target's."
    )


def _what_it_is(options: Mapping[str, Any]) -> str:
    if options["kind"] == "mtp":
        return f"Drafts chains of up to {options['block']} tokens: one causal layer that feeds on its own states,"
    window = "" if options["window"] is None else f" within {options['window']} tokens,"
    return (
        f"Drafts blocks of {options['block']} tokens: {options['layers']} layers over the target's layer outputs"
        f" {list(options['taps'])},{window} a `{options['head']}` sequential head,"
    )


def _training(card: Mapping[str, Any]) -> str:
    data, options = card["data"], card["options"]
    share = options["coupled"]
    lines = [
        "## Training",
        "",
        f"- data: {data['tokens']:,} tokens, {data['sequences']['train']:,} sequences that the target itself wrote"
        f" (seed {data['seed']}); prompts: `dsbench`'s training prompts and user turns that the target wrote",
        f"- {card['steps']:,} steps in {card['seconds']:.0f} s on {card['device']}, seed {options['seed']},"
        f" peak learning rate {options['lr']}",
        f"- loss: 0.1 cross-entropy + {0.9 * (1 - share):.2g} L1"
        + (f" + {1.8 * share:.2g} of the smooth coupled event" if share else "")
        + " + the confidences' binary cross-entropies",
    ]
    if "final" in card:
        known = [f"{label} {card['final'][name]:.4g}" for name, label in TRAINED if name in card["final"]]
        lines.append(f"- at the end: {', '.join(known)}")
    if "command" in card:
        lines += ["", "    " + card["command"]]
    return "\n".join(lines)


def _validation(card: Mapping[str, Any]) -> str:
    block = card["options"]["block"]
    rows = [
        [text, event, f"{found['tau']:.3f}", *(f"{a:.3f}" for a in found["acceptance"])]
        for text, events in card["validation"].items()
        for event, found in events.items()
    ]
    head = ["text", "event", "tau", *(f"depth {k}" for k in range(1, block + 1))]
    return (
        "## Validation (teacher-forced, held-out prompts)\n\n" + _table(head, rows) + "\n\n"
        "tau counts the bonus token. These are means over given text, not accepted lengths of a run."
    )


def _lengths(measured: Mapping[str, Any]) -> str:
    rows = [
        [r["event"], r["workload"], _interval(r["tau"], 2), str(r["rounds"]), f"{r['repetition']:.2f}"]
        for r in measured["lengths"]
    ]
    facts = measured["conditions"]
    return (
        f"## Accepted length, the full block verified\n\n{facts['prompts']} held-out prompts a workload, at most"
        f" {facts['max_tokens']} tokens, {facts['dtype']}, {facts['device']}; bonus included, 95% over prompts.\n\n"
        + _table(["event", "workload", "tau", "rounds", "4-gram repetition"], rows)
    )


def _depths(measured: Mapping[str, Any]) -> str:
    if not measured["depths"]:
        return ""
    deepest = max((len(r["conditional"]) for r in measured["depths"]), default=0)
    rows = [
        [r["event"], r["drafter"], *(_interval(c, 3) if c else "" for c in r["conditional"])]
        + [""] * (deepest - len(r["conditional"]))
        for r in measured["depths"]
    ]
    head = ["event", "drafter", *(f"depth {k}" for k in range(1, deepest + 1))]
    workloads = ", ".join(measured["workloads"])
    return f"## Acceptance by depth, given that the drafts before passed\n\n{workloads} together.\n\n" + _table(
        head, rows
    )


def _times(measured: Mapping[str, Any]) -> str:
    if not measured["times"]:
        return ""
    rows = [
        [r["device"], r["executor"], r["drafter"], str(r["batch"]), str(r["depth"]), _interval(r["milliseconds"], 3)]
        for r in measured["times"]
    ]
    head = ["device", "executor", "drafter", "requests", "drafts", "ms"]
    return "## Milliseconds to draft a full block\n\n300 tokens of context.\n\n" + _table(head, rows)


def _interval(found: Sequence[float | None], digits: int) -> str:
    """A single prompt gives no interval."""
    value, *bounds = (f"{x:.{digits}f}" for x in found if x is not None)
    return f"{value} [{', '.join(bounds)}]" if bounds else value


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
