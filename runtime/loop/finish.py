"""When a request ends: EOS, its token limit, the context, or a stop string anywhere in a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dsbench.runtime.request import Request


def extend(
    request: Request,
    tokens: Sequence[int],
    eos: frozenset[int],
    decode: Callable[[Sequence[int]], str] | None,
    room: int,
) -> int:
    """Appends tokens until one of them ends the request; sets its finish reason; returns how many were appended.

    EOS is part of the output. A stop string ends the output with the token that completes it; `text` is cut before it.
    """
    for count, token in enumerate(tokens, start=1):
        request.output.append(token)
        if token in eos and not request.sampling.ignore_eos:
            request.finish_reason = "stop"
        elif request.sampling.stop and decode is not None and (cut := _stopped(request, decode)) is not None:
            request.finish_reason, request.text = "stop", cut
        elif count >= room:
            request.finish_reason = "length"
        if request.finished:
            return count
    return len(tokens)


def _stopped(request: Request, decode: Callable[[Sequence[int]], str]) -> str | None:
    """The output's text before the earliest stop string, if one is complete."""
    text = decode(request.output)
    found = [at for at in (text.find(stop) for stop in request.sampling.stop) if at >= 0]
    return text[: min(found)] if found else None
