"""Run by test_training_ranks.py as one rank of several: what it saw goes to a file in the folder it is given."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from letters import LETTERS  # noqa: E402
from training_tools import CPU, EOS, OPTIONS, VOCAB, quiet, random_data, toy_target  # noqa: E402

from dsbench.errors import DsbenchError  # noqa: E402
from dsbench.runtime.training.data import obtain_data  # noqa: E402
from dsbench.runtime.training.fit import fit  # noqa: E402
from dsbench.runtime.training.keeper import BatchOrder, Keeper  # noqa: E402
from dsbench.runtime.training.ranks import Ranks, joined  # noqa: E402
from dsbench.runtime.training.step import loss_of  # noqa: E402
from dsbench.runtime.training.token_data import TRAIN  # noqa: E402
from dsbench.runtime.training.train import prepare  # noqa: E402

STEPS = replace(OPTIONS, head="rnn", seconds=1e9)


class Watched(Ranks):
    """Files what the first `add` brought together."""

    added: list[torch.Tensor] = []  # noqa: RUF012

    def add(self, values) -> None:
        super().add(values)
        if not self.added:
            self.added.extend(v.clone() for v in values)


def alone(setting, ranks: Ranks) -> list[torch.Tensor]:
    """The gradient of this rank's first batch, not shared with anybody."""
    generator = torch.Generator().manual_seed(STEPS.seed * ranks.count + ranks.index)
    order = BatchOrder(setting.splits[TRAIN], STEPS.batch // ranks.count, generator)
    blocks = setting.maker.make(order.take(), generator)
    loss_of(setting.module, setting, blocks, torch.tensor([ranks.index])).total.backward()
    grads = [p.grad.clone() for p in setting.module.parameters()]
    setting.module.zero_grad(set_to_none=True)
    return grads


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    with joined(CPU) as found:
        ranks = Watched(found.index, found.count)
        items = list(range(7))
        mine = ranks.share(items)
        setting = prepare(STEPS, toy_target(), random_data(40), EOS, quiet, ranks)
        first = [p.detach().clone() for p in setting.module.parameters()]
        before, log = alone(setting, ranks), []
        keeper = Keeper(folder / f"state{ranks.index}", "k", 0.0)
        fit(STEPS, setting, log.append, most_steps=5, ranks=ranks, keeper=keeper)
        last = [p.detach().clone() for p in setting.module.parameters()]
        if ranks.first:  # a stop between two ranks' writes: one is a step ahead
            state = torch.load(keeper.path)
            torch.save(state | {"step": state["step"] - 1}, keeper.path)
        try:
            refused = ""
            fit(STEPS, setting, quiet, most_steps=9, ranks=ranks, keeper=keeper)
        except DsbenchError as problem:
            refused = problem.message
        options = replace(OPTIONS, sequences=18, validation=4, max_tokens=12, width=200, data_path=folder / "data.npz")
        writing = replace(LETTERS, eos=frozenset(range(0, VOCAB, 9)))
        data = obtain_data(options, writing, ["What?", "Why then?"], ["Sum", "Tell"], quiet, ranks)
        torch.save(
            {
                "mine": mine,
                "together": ranks.together(mine),
                "agreed": ranks.agree(ranks.index + 0.5),
                "first": first,
                "alone": before,
                "added": ranks.added,
                "last": last,
                "refused": refused,
                "log": log,
                "sequences": setting.splits[TRAIN].shape[0],
                "text": setting.maker.features.ids.tolist(),
                "data": [getattr(data, n).tolist() for n in ("ids", "starts", "prompt", "temperature", "split")],
            },
            folder / f"rank{ranks.index}.pt",
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
