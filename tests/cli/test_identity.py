"""A run keeps to the template, its arguments and the tokenizer that it was begun with."""

from __future__ import annotations

import json

from command import dsbench, model, sweep_flags  # noqa: F401

from dsbench.results.store import RunStore


def test_a_resume_refuses_another_template_and_other_arguments(model, tmp_path):  # noqa: F811
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if brief %}!{% endif %}"
    (model / "chat_template.jinja").write_text(template, encoding="utf-8")
    flags = [*sweep_flags(model, tmp_path), "--mode", "none"]
    done = dsbench(*flags, home=tmp_path)
    assert done.returncode == 0, done.stderr
    again = dsbench(*flags, "--resume", home=tmp_path)
    assert again.returncode == 0, again.stderr
    cells = RunStore(tmp_path / "run").cells()
    assert all(stored.cell.template and stored.cell.tokenizer for stored in cells)
    for changed in (["--template-arg", "brief=true"], ["--parse-special"]):
        other = dsbench(*flags, *changed, "--resume", home=tmp_path)
        assert other.returncode == 6 and "recorded" in other.stderr, other.stderr
        assert ("chat template" if "brief=true" in changed else "tokenizer") in other.stderr
    (model / "chat_template.jinja").write_text(template + "?", encoding="utf-8")
    other = dsbench(*flags, "--resume", home=tmp_path)
    assert other.returncode == 6 and "chat template" in other.stderr
    fresh = dsbench(*flags, "--out", str(tmp_path / "other"), home=tmp_path)
    assert fresh.returncode == 0, fresh.stderr
    keys = [{path.name for path in (tmp_path / name / "cells").iterdir()} for name in ("run", "other")]
    assert not keys[0] & keys[1]


def test_a_stop_string_may_be_a_control_token(model, tmp_path):  # noqa: F811
    body = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "0+9"}\n')
    flags = ["generate", "--target", str(model), "--mode", "none", "--prompts", str(prompts), "--json"]
    flags += ["--max-tokens", "12", "--temperature", "0"]
    (plain,) = json.loads(dsbench(*flags, home=tmp_path).stdout)
    stop = next(i for i in plain["token_ids"] if i not in plain["prompt_ids"])  # made one, which decoding leaves out
    first = plain["token_ids"].index(stop)
    text = next(t for t, i in body["model"]["vocab"].items() if i == stop)
    del body["model"]["vocab"][text]
    body["model"]["vocab"]["<|eot|>"] = stop
    token = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    body["added_tokens"] = [{"id": stop, "content": "<|eot|>", **token}]
    (model / "tokenizer.json").write_text(json.dumps(body), encoding="utf-8")
    done = dsbench(*flags, "--stop", "<|eot|>", home=tmp_path)
    assert done.returncode == 0, done.stderr
    (cut,) = json.loads(done.stdout)
    assert cut["token_ids"] == plain["token_ids"][: first + 1] and cut["finish_reason"] == "stop"
    assert "<|eot|>" not in cut["text"]
