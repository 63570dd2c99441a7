"""The traffic of a sweep: arrivals, lengths, and which requests of a queue are measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsbench.analysis.slo import parse_slo
from dsbench.errors import UsageError
from dsbench.runtime.request import Request
from dsbench.settings import RunConfig
from dsbench.workloads.arrivals import Arrivals, parse_arrivals
from dsbench.workloads.lengths import Lengths, parse_lengths, recorded_lengths, with_lengths

WARMING = 4  # in the open loop a request comes before the measured ones for every so many of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """loads: arrival rates with their own cells, None for the closed loop; length distributions, None: the prompts'
    own.
    """

    loads: tuple[Arrivals | None, ...]
    prompt: Lengths | None
    output: Lengths | None

    @property
    def lengths(self) -> tuple[str, str]:
        """Names of the laws, "" where there is none."""
        return tuple(law.name if law else "" for law in (self.prompt, self.output))  # type: ignore[return-value]

    def shaped(self, queue: Sequence[Request], seed: int, longest: int) -> list[Request]:
        """The queue with its lengths; prompts of `longest` tokens at most."""
        return with_lengths(queue, self.prompt, self.output, seed=str(seed), longest=longest)

    def cut(self, count: int, seed: int, longest: int, answer: int) -> tuple[int, int]:
        """Of `count` requests, how many prompts and answers the laws draw longer than `longest` and `answer` tokens, so
        that they are cut to that."""
        laws = ((self.prompt, "prompt", longest), (self.output, "output", answer))
        prompts, answers = (
            sum(law.of(i, f"{part}\0{seed}") > most for i in range(count)) if law else 0 for law, part, most in laws
        )
        return prompts, answers

    def check_prompts(self, longest: int) -> None:
        """Raises UsageError for prompts that would leave no room for an answer."""
        most = self.prompt.most if self.prompt else None
        if most is not None and most > longest:
            raise UsageError(
                f"prompts of {most} tokens leave too little of the context",
                hint=f"at most {longest}, or fewer --max-tokens",
            )


def plan_traffic(config: RunConfig) -> Traffic:
    """Raises UsageError for the first setting that makes no sense."""
    loads, recorded = parse_arrivals(
        config.request_rate,
        burstiness=config.burstiness,
        file=config.arrivals,
        used=warming(config.requests) + config.requests,
    )
    prompt, output = parse_lengths(config.input_len, "prompt"), parse_lengths(config.output_len, "output")
    if recorded is not None:
        name = f"{recorded.name} ({recorded.digest})"
        if recorded.prompt_tokens and prompt is None:
            prompt = recorded_lengths(recorded.prompt_tokens, name)
        if recorded.output_tokens and output is None:
            output = recorded_lengths(recorded.output_tokens, name)
    if output is not None and (output.most or 0) > config.max_tokens:
        raise UsageError(
            f"answers of {output.most} tokens are longer than max-tokens {config.max_tokens}",
            hint=f"--max-tokens {output.most}",
        )
    if config.slo:
        parse_slo(config.slo)
    for load in loads:
        if load is not None and load.recorded:
            _check_recorded(load, config.requests)
    return Traffic(loads=loads, prompt=prompt, output=output)


def measured_of(load: Arrivals | None, batch: int, requests: int) -> tuple[range, int]:
    """Which of a queue are measured at this load and limit, and how long the queue is.

    Closed loop: the first `batch` requests warm up, and half as many again follow the measured ones. Open loop: the
    load builds up before them, and the requests after them keep it up until the last measured one has ended.
    """
    followers = batch + batch // 2
    if load is None:
        count = max(requests, batch)
        return range(batch, batch + count), batch + count + followers
    before = warming(requests)
    size = before + requests + followers
    return range(before, before + requests), min(size, len(load.recorded)) if load.recorded else size


def warming(requests: int) -> int:
    return max(1, requests // WARMING)


def _check_recorded(load: Arrivals, requests: int) -> None:
    there, needed = len(load.recorded), requests + warming(requests)
    if there < needed:
        fits = max((n for n in range(1, there) if n + warming(n) <= there), default=0)
        raise UsageError(
            f"{load.name} holds {there} arrivals; {requests} measured requests and {warming(requests)} before them "
            "are asked for",
            hint=f"--requests {fits}" if fits else "it needs two at least",
        )
