"""An engine on a virtual clock: prompts one after another, rounds of a known length, a known number of tokens each."""

from __future__ import annotations

from dataclasses import fields

from dsbench.runtime.config import EngineConfig
from dsbench.runtime.records import RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request, SamplingParams


def toy_requests(lengths, *, prompts=4):
    return [
        Request(
            id=i,
            name=f"p{i % prompts}" + (f"#{i // prompts}" if i >= prompts else ""),
            workload="toy",
            prompt_ids=[1, 2, 3],
            sampling=SamplingParams(max_tokens=n, seed=i),
        )
        for i, n in enumerate(lengths)
    ]


class VirtualEngine:
    """`prefill` seconds a prompt; `seconds(R)` a round; each request's i-th round delivers `delivers[i]`, in turn."""

    def __init__(self, *, prefill, seconds, delivers=(1,)):
        self.prefill, self.seconds, self.delivers = prefill, seconds, delivers
        self.config, self.clock = EngineConfig(), 0.0
        self.steps, self.rounds, self.finished, self.running = [], [], [], []
        self.rested, self._came, self._last = 0.0, {}, 0.0

    def now(self):
        return self.clock

    def rest(self, until):
        assert not self.running and until > self.clock, "it rests only while nobody is there and nobody is due"
        self.rested += until - self.clock
        self.clock = self._last = until

    def admit(self, requests):
        begin = self.clock
        for request in requests:
            self.clock += self.prefill
            self._came[request.id] = (begin, self.clock)
            request.output.append(7)
            self.running.append(request)
        self._retire()
        return []

    def step(self):
        prefill, number, total = self.clock - self._last, len(self.steps), 0
        self.clock += self.seconds(len(self.running))
        for request in self.running:
            wanted = self.delivers[request.rounds % len(self.delivers)]
            out = min(wanted, request.sampling.max_tokens - len(request.output))
            self.rounds.append(
                RoundRecord(
                    step=number,
                    request=request.id,
                    workload="toy",
                    position=3,
                    output_index=len(request.output),
                    window=wanted - 1,
                    verified=wanted - 1,
                    accepted=out - 1,
                    delivered=out,
                    ceiling=-1,
                    flips=0,
                    drafts=(7,) * (wanted - 1),
                    logits=(),
                    token_free_logits=(),
                )
            )
            request.output.extend([7] * out)
            request.rounds, total = request.rounds + 1, total + out
        blank = {f.name: 0 for f in fields(StepRecord)}
        known = {
            "step": number,
            "start": self.clock,
            "requests": len(self.running),
            "rows": len(self.running),
            "read": self.clock,
            "tier": len(self.running),
            "delivered": total,
            "seconds": self.clock - self._last,
            "prefill_seconds": prefill,
            "predicted_seconds": float("nan"),
            "extrapolated": False,
        }
        self.steps.append(StepRecord(**blank | known))
        self._last = self.clock
        self._retire()
        return self.steps[-1]

    def _retire(self):
        for request in [r for r in self.running if len(r.output) >= r.sampling.max_tokens]:
            request.finish_reason = "length"
            self.finished.append(RequestRecord.of(request, *self._came[request.id], self.clock))
        self.running = [r for r in self.running if not r.finished]

    def record(self, timeline):
        """Nobody records it."""

    def close(self):
        self.running = []
