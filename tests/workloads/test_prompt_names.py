"""Replicas of a prompt are one prompt, also where its file has a # in its name; kept texts may be damaged."""

from types import SimpleNamespace

import pytest

from dsbench.errors import UsageError
from dsbench.results.tables import prompt_of
from dsbench.runtime.request import Request, SamplingParams
from dsbench.settings import RunConfig
from dsbench.sweep.texts import pinned_texts, text_key
from dsbench.workloads.workload import load_workload


def named(name):
    return Request(id=0, name=name, workload="w", prompt_ids=[1], sampling=SamplingParams())


def test_a_file_with_a_number_sign_in_its_name_has_as_many_prompts_as_lines(tmp_path):
    path = tmp_path / "c#.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    ids = [prompt.id for prompt in load_workload(str(path), seed=0, home=tmp_path).prompts]
    assert sorted(prompt_of(named(i)) for i in ids) == sorted(ids) and len(set(ids)) == 2
    assert sorted(prompt_of(named(f"{i}#3")) for i in ids) == sorted(ids)


def test_damaged_texts_are_one_line(tmp_path):
    config, contract = RunConfig(), dict.fromkeys(("target", "dtype", "numerics", "device"), "x")
    deployment = SimpleNamespace(contract=contract, encoding={})
    workload = load_workload("math", seed=0, home=tmp_path)
    path = tmp_path / f"{text_key(workload, config, deployment)}.parquet"
    for damage in (b"", b"PAR1 and no more"):
        path.write_bytes(damage)
        with pytest.raises(UsageError, match="damaged"):
            pinned_texts(tmp_path, workload, [], config, SimpleNamespace(deployment=deployment), print)
