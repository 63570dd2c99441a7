"""The emitted law, exactly: the outputs of two requests over a toy vocabulary, by enumeration of every draw.

A uniform is not sampled but cut: each use splits its interval at the break points of what it decides, and the branch
carries the length. The decisions themselves (draft draw, plan, accept, resample, bonus) are the production functions,
fed with the middle of each piece. An `Accepter` enumerates what one acceptance rule makes of a window.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import cache

import numpy as np
import torch
from toys import staircase_table, toy_logits

from dsbench.profiles.cost import Box, CostTable
from dsbench.profiles.curve import Curve
from dsbench.runtime.law.accept import residual_tests, residual_token
from dsbench.runtime.policy.compact import Compact
from dsbench.runtime.policy.early_stop import EarlyStop
from dsbench.runtime.policy.objective import allocate
from dsbench.runtime.policy.plan import Seen, VerifyPlan
from dsbench.runtime.policy.prices import Prices
from dsbench.runtime.policy.threshold import Threshold
from dsbench.runtime.policy.token_free import TokenFree
from dsbench.runtime.sampling import Sampling, distribution, inverse_cdf

PROMPT = (1,)
WHOLE = (0.0, 1.0)  # the interval of a fresh uniform
SETTINGS = {
    "T=1": (2, (5, 4), 1.0, 0, 1.0),
    "T=0.7": (2, (5, 4), 0.7, 0, 1.0),
    "top-k 2, top-p 0.8": (3, (4, 4), 1.0, 2, 0.8),
}  # name -> vocabulary, output tokens of both, temperature, top-k, top-p


class Toy:
    """Target law, draft law and confidence of every prefix under one sampling setting, for two requests."""

    def __init__(
        self,
        vocab: int,
        lengths: tuple[int, int],
        temperature: float,
        top_k: int,
        top_p: float,
        block: int = 2,
        table: CostTable | None = None,
        flat_draft: bool = False,
    ) -> None:
        self.flat_draft = flat_draft
        self.vocab, self.lengths, self.block = vocab, lengths, block
        self.table = table or staircase_table(2, block)
        self.sampling = Sampling(
            temperature=torch.tensor([temperature]),
            top_k=torch.tensor([top_k]),
            top_p=torch.tensor([top_p]),
            seed=torch.tensor([0]),
            round=torch.tensor([0]),
            unfiltered=top_k == 0 and top_p == 1,
        )

    @cache  # noqa: B019  (a toy lives as long as its test)
    def p(self, text: tuple[int, ...], who: int) -> torch.Tensor:
        return distribution(torch.tensor([toy_logits((who, *text), self.vocab, 1)]), self.sampling)[0]

    @cache  # noqa: B019
    def q(self, text: tuple[int, ...], who: int) -> torch.Tensor:
        text = () if self.flat_draft else text
        return distribution(torch.tensor([toy_logits((who, *text), self.vocab, 2)]), self.sampling)[0]

    def confidence(self, text: tuple[int, ...], depth: int) -> float:
        """At the deepest draft it depends on the token before it, and strongly: what an anticipating planner leaks."""
        return (0.95, 0.15, 0.6)[text[-1]] if depth == self.block - 1 else 0.8

    def free(self, text: tuple[int, ...], depth: int) -> float:
        """Of the committed text alone, and strongly."""
        return (0.9, 0.25, 0.6)[text[-1]] if depth else (0.85, 0.5, 0.3)[text[-1]]

    @cache  # noqa: B019
    def draws(self, text: tuple[int, ...], who: int, interval: tuple[float, float]) -> list[tuple]:
        """(share, token, piece) of the draft after `text`, over a uniform in `interval`."""
        law = self.q(text, who)
        return [(share, pick(law, u), piece) for share, u, piece in cut(interval, cdf_breaks(law))]

    @cache  # noqa: B019
    def survival(self, text: tuple[int, ...], tokens: tuple[int, ...]) -> tuple[float, ...]:
        return _product([self.confidence(text + tokens[:j], j) for j in range(self.block)])

    @cache  # noqa: B019
    def told(self, text: tuple[int, ...]) -> tuple[float, ...]:
        """Survival by what is known before the block is drawn."""
        return _product([self.free(text, j) for j in range(self.block)])

    @cache  # noqa: B019
    def accepter(self, rule: type[Accepter]) -> Accepter:
        """One, so that laws of several policies share what its windows make."""
        return rule(self)

    def law(self, who: int) -> dict[tuple[int, ...], float]:
        """The target's own distribution over whole outputs."""
        out = {(): 1.0}
        for _ in range(self.lengths[who]):
            out = {(*t, v): m * float(self.p(PROMPT + t, who)[v]) for t, m in out.items() for v in range(self.vocab)}
        return {t: m for t, m in out.items() if m > 0}


def cut(interval: tuple[float, float], breaks: list[float]) -> list[tuple[float, float, tuple[float, float]]]:
    """(share of the interval, its middle, the piece) for each piece between the break points."""
    low, high = interval
    edges = [low, *(b for b in sorted(breaks) if low + 1e-12 < b < high - 1e-12), high]
    return [((b - a) / (high - low), (a + b) / 2, (a, b)) for a, b in itertools.pairwise(edges)]


def cdf_breaks(weights: torch.Tensor) -> list[float]:
    mass = weights.double().cumsum(-1)
    return [float(x) for x in mass / mass[-1]]


def pick(weights: torch.Tensor, u: float) -> int:
    return int(inverse_cdf(weights[None], torch.tensor([u], dtype=torch.float64))[0])


def drafts(toy: Toy, text: tuple[int, ...], who: int, memory: tuple):
    """Every block: (probability, tokens, memory of the draft uniforms by position)."""
    if len(text) - len(PROMPT) >= toy.lengths[who]:
        return [(1.0, (0,) * toy.block, {})]
    branches = [(1.0, (), dict(memory))]
    for _ in range(toy.block):
        grown = []
        for mass, tokens, kept in branches:
            at = len(text) + len(tokens)
            for share, token, piece in toy.draws(text + tokens, who, kept.get(at, WHOLE)):
                grown.append((mass * share, (*tokens, token), {**kept, at: piece}))
        branches = grown
    return branches


class Accepter:
    """Every outcome of testing `window` drafts: {emitted tokens: probability}. This one: the residual rule."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.memo = toy, {}

    def outcomes(self, text: tuple[int, ...], who: int, tokens: tuple[int, ...], window: int) -> dict:
        key = (text, who, tokens, window)
        if key not in self.memo:
            self.memo[key] = self._enumerate(*key)
        return self.memo[key]

    def laws(self, text: tuple[int, ...], who: int, tokens: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        """q [1, G, V] and p [1, W, V] along the drafts."""
        law = torch.stack([self.toy.q(text + tokens[:j], who) for j in range(self.toy.block)])[None]
        return law, torch.stack([self.toy.p(text + tokens[:j], who) for j in range(self.toy.block + 1)])[None]

    def _enumerate(self, text, who, tokens, window):
        law, target = self.laws(text, who, tokens)
        draft = torch.tensor([tokens])
        found: dict = defaultdict(float)
        for pieces in itertools.product(*(cut(WHOLE, [b]) for b in self.chances(draft, law, target, window))):
            mass = float(np.prod([share for share, _, _ in pieces])) if pieces else 1.0
            u = torch.zeros(1, self.toy.block, dtype=torch.float64)
            u[0, :window] = torch.tensor([middle for _, middle, _ in pieces], dtype=torch.float64)
            accepted = self.accepted(draft, law, target, window, u)
            weight = self.weight(draft, law, target, accepted)
            for share, token in self._last(law, target, accepted, window, weight):
                found[(*tokens[:accepted], token)] += mass * share
        return dict(found)

    def chances(self, draft, law, target, window) -> list[float]:
        """Where each test's uniform is cut."""
        return [
            min(float(target[0, j, t].double() / law[0, j, t].double()), 1.0)
            for j, t in enumerate(draft[0, :window].tolist())
        ]

    def accepted(self, draft, law, target, window, u) -> int:
        passed = residual_tests(draft, law, target, u, self.toy.block)[0, :window]
        return int(passed.long().cumprod(-1).sum())

    def weight(self, draft, law, target, accepted) -> torch.Tensor | None:
        """What scales p where q is taken off it."""
        return None

    def _last(self, law, target, accepted, window, weight):
        """(share, token) over all values of the uniform that picks the token after the accepted drafts."""
        p = target[0, accepted].double()
        breaks = cdf_breaks(p)
        if accepted < window:
            rest = ((1 if weight is None else weight) * target[0, accepted] - law[0, accepted]).clamp(min=0)
            breaks += cdf_breaks(rest) if float(rest.sum()) > 0 else []
        out = []
        at, most = torch.tensor([accepted]), torch.tensor([window])
        for share, u, _ in cut(WHOLE, breaks):
            mid = torch.tensor([u], dtype=torch.float64)
            out.append((share, int(residual_token(law, target, at, most, mid, mid, weight))))
        return out


def plan_windows(
    table: CostTable, policy: str, survival: np.ndarray, past: np.ndarray, told: np.ndarray, limits: np.ndarray
) -> tuple[int, ...]:
    """The production policies on two requests; `anticipating` is the argmax over the very block it admits.

    told: survival by what is known before the block is drawn; `peeking` takes the block's own word for it.
    """
    block, context = survival.shape[1], 4
    prices = Prices(table, block, (block,))
    full = VerifyPlan(depth=block, budget=2 * block, reason="law")
    if policy == "full":
        return tuple(int(x) for x in limits)
    if policy in ("threshold", "early-stop"):
        chooser = Threshold(block, 0.5) if policy == "threshold" else EarlyStop(prices)
        plan = chooser.within(full, Seen(survival=survival, limits=limits, context=context))
        return tuple(plan.window.tolist())
    if policy in ("free", "peeking"):
        seen = Seen(survival=told if policy == "free" else survival, limits=limits, context=context)
        plan = TokenFree(prices).within(full, seen)
        return tuple(allocate(survival, limits.clip(max=plan.depth), plan.budget).tolist())
    _, budget = Compact(prices).best(survival if policy == "anticipating" else past, limits, context)
    return tuple(allocate(survival, limits, budget).tolist())


def output_law(
    toy: Toy, policy: str, *, lag: int, keyed_by_round: bool = True, rule: type[Accepter] = Accepter
) -> tuple[dict, int]:
    """Distribution over the pair of outputs, and the most rounds any branch took.

    State: both texts, the last `lag` survivals, and (unless noise is keyed by round) the uniforms already shown.
    """
    accepter = toy.accepter(rule)
    prior = (tuple(0.5 ** (j + 1) for j in range(toy.block)),) * 2
    states = {((), (), (prior,) * lag, (), ()): 1.0}
    finished: dict = defaultdict(float)
    memo: dict = {}
    rounds = 0
    while states:
        rounds += 1
        grown: dict = defaultdict(float)
        for (one, two, ring, kept_one, kept_two), mass in states.items():
            for a, b in itertools.product(
                drafts(toy, PROMPT + one, 0, kept_one), drafts(toy, PROMPT + two, 1, kept_two)
            ):
                survival = tuple(toy.survival(PROMPT + t, d[1]) for t, d in ((one, a), (two, b)))
                limits = tuple(
                    min(toy.block, max(0, n - len(t) - 1)) for t, n in zip((one, two), toy.lengths, strict=True)
                )
                told = tuple(toy.told(PROMPT + t) for t in (one, two))
                key = (survival, ring[:1], told, limits)
                if key not in memo:
                    past = np.array(ring[0] if ring else survival)
                    memo[key] = plan_windows(
                        toy.table, policy, np.array(survival), past, np.array(told), np.array(limits)
                    )
                window = memo[key]
                ends = [
                    accepter.outcomes(PROMPT + t, who, d[1], w).items() if len(t) < toy.lengths[who] else [((), 1.0)]
                    for who, (t, d, w) in enumerate(((one, a, window[0]), (two, b, window[1])))
                ]
                ring_after = (*ring, survival)[1:] if lag else ()
                for (x, m), (y, n) in itertools.product(*ends):
                    texts = (one + x, two + y)
                    keep = [
                        () if keyed_by_round else tuple((at, u) for at, u in d[2].items() if at >= len(PROMPT + t))
                        for t, d in zip(texts, (a, b), strict=True)
                    ]
                    weight = mass * a[0] * b[0] * m * n
                    if tuple(map(len, texts)) == toy.lengths:
                        finished[texts] += weight
                    else:
                        grown[(*texts, ring_after, *keep)] += weight
        states = grown
    return dict(finished), rounds


def _product(conditional: list[float]) -> tuple[float, ...]:
    return tuple(float(x) for x in np.cumprod(conditional))


def bias(toy: Toy, found: dict) -> float:
    """Largest difference between the emitted law and the target's, over pairs of outputs."""
    one, two = toy.law(0), toy.law(1)
    wanted = {(a, b): m * n for (a, m), (b, n) in itertools.product(one.items(), two.items())}
    return max(abs(found.get(k, 0.0) - wanted.get(k, 0.0)) for k in set(found) | set(wanted))


def all_or_nothing(rows: int, seconds: float) -> CostTable:
    """Two requests and up to `rows` rows: the first paid row costs `seconds` as all of them do, beside 1 s a step."""
    return CostTable(
        bias=1.0,
        alpha=Curve((1, 2), (0.0, 0.0)),
        theta=Curve.of({1: 0.0, 2: 0.0, 3: seconds, rows: seconds}),
        tiers=None,
        box=Box(requests=(1, 2), rows=(1, rows), context=(0, 100)),
    )
