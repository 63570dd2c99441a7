"""Shared by tests: what training data tests and others run on."""

from __future__ import annotations

from training_tools import EOS, toy_target

from dsbench.runtime.targets.load import LoadedTarget


class Letters:
    """A chat tokenizer of single letters: ids 3..96 are ' '..'}', the others no text."""

    def chat(self, messages) -> str:
        return f"[u]{messages[0][1]}[a]"

    def encode(self, text: str) -> list[int]:
        return [ord(c) - 29 for c in text]

    def encode_chat(self, messages) -> list[int]:
        return self.encode(self.chat(messages))

    def decode(self, ids) -> str:
        return "".join(chr(i + 29) if i > 2 else "\ufffd" for i in ids)


LETTERS = LoadedTarget(name="toy", model=toy_target(), tokenizer=Letters(), eos=EOS, random=False)
