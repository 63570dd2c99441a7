"""Requests that come, go, are cancelled and come again at random, and what each of them must have written.

The expected texts are worked out request by request, from the whole text it would write alone: no engine has a part in
where they end.
"""

from __future__ import annotations

import random
from dataclasses import replace

from dsbench.runtime.request import Request, SamplingParams

LONGEST = 17  # output tokens
EOS = frozenset({5})


def decode(ids):
    return "".join(f"<{i}>" for i in ids)


def random_requests(count, rng, *, vocab, longest_prompt):
    """Prompts, limits, temperatures, stop strings of one or two tokens, EOS heeded or not."""
    found = []
    for i in range(count):
        pair, one = f"<{rng.randrange(vocab)}><{rng.randrange(vocab)}>", f"<{rng.randrange(vocab)}>"
        sampling = SamplingParams(
            temperature=rng.choice([0.0, 0.7, 1.0]),
            seed=rng.getrandbits(62),
            ignore_eos=rng.random() < 0.3,
            max_tokens=rng.choice([1, 2, 3, 5, 9, LONGEST]),
            stop=rng.choice([(), (pair,), (one, pair)]),
        )
        prompt = [rng.randrange(vocab) for _ in range(rng.randint(1, longest_prompt))]
        found.append(Request(id=i, name=str(i), workload="toy", prompt_ids=prompt, sampling=sampling))
    return found


def unending(requests):
    """The same, each to write LONGEST tokens whatever they are."""
    free = {"max_tokens": LONGEST, "stop": (), "ignore_eos": True}
    return [
        Request(
            id=r.id, name=r.name, workload=r.workload, prompt_ids=r.prompt_ids, sampling=replace(r.sampling, **free)
        )
        for r in requests
    ]


def ending(request, whole):
    """(output, reason, text) of a request that would write `whole` if nothing ended it."""
    asked = request.sampling
    for count in range(1, len(whole) + 1):
        output, text = whole[:count], decode(whole[:count])
        at = [text.find(stop) for stop in asked.stop if stop in text]
        if output[-1] in EOS and not asked.ignore_eos:
            return output, "stop", None
        if at:
            return output, "stop", text[: min(at)]
        if count == asked.max_tokens:
            return output, "length", None
    raise AssertionError("nothing ended it")


def churn(engine, requests, seats, rng, *, cancel=0.05, again=0.5):
    """Runs them all: some are cancelled at a random moment, and of those some come again, at once or later."""
    waiting = list(requests)
    while waiting or engine.running:
        room = min(len(waiting), seats - len(engine.running), rng.choice([0, 1, 3, seats]))
        refused = engine.admit(waiting[:room])
        waiting = refused + waiting[room:]
        for victim in [r for r in engine.running if rng.random() < cancel]:
            engine.cancel(victim)
            if rng.random() < again:
                victim.output.clear()
                victim.finish_reason, victim.rounds, victim.text = None, 0, None
                waiting.insert(rng.choice([0, len(waiting)]), victim)
        if engine.running:
            engine.step()
        engine.device.pool.check()
    engine.close()
    engine.device.pool.check()
    assert engine.device.pool.free_pages == engine.device.pool.shape.pages, "pages leaked"


def check_texts(requests, whole):
    """Every text as its request alone would have written it, a cancelled one up to where it was cancelled."""
    for request, text in zip(requests, whole, strict=True):
        output, reason, shown = ending(request, text)
        if request.finish_reason == "cancelled":
            assert request.output == output[: len(request.output)], request
        else:
            assert (request.output, request.finish_reason, request.text) == (output, reason, shown), request


def ended_by(requests):
    """What ended them: cancelled, length, eos, string."""
    kinds = {r.finish_reason for r in requests if r.finish_reason != "stop"}
    return kinds | {"eos" if r.text is None else "string" for r in requests if r.finish_reason == "stop"}


def seeded(seed):
    return random.Random(seed)
