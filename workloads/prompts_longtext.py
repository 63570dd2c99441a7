"""Built-in set `longtext`: a passage of 300 to 700 words and a question about it.

Long prompts, and answers that reuse the passage's words. A passage is its opening paragraph and three or four of the
others, in order, so that prompts share beginnings but differ in length and content.
"""

from __future__ import annotations

from itertools import combinations

from dsbench.workloads.passages_crafts import CRAFTS
from dsbench.workloads.passages_towns import TOWNS
from dsbench.workloads.rng import shuffled

EACH = 130
GENERAL = (
    "Summarise the passage in three sentences.",
    "Make a timeline of every year mentioned, with one line for each.",
    "List all the numbers in the passage and say what each one counts or measures.",
    "Who are the people in the passage, and what did each of them do?",
    "Which facts in the passage would you want to check before repeating them, and why?",
    "Rewrite the passage for readers aged eight, at half its length.",
    "Write five questions for a reading test on this passage, with the answers.",
    "What is the main tension in the passage? Quote the sentence that shows it best.",
    "Give the passage a headline and each paragraph a short heading.",
)
LAYOUTS = (
    "Read the passage and answer the question.\n\n{passage}\n\nQuestion: {question}",
    "{question}\n\n---\n{passage}\n---",
    "Here is a text:\n\n{passage}\n\nUsing only this text: {question}",
)
PASSAGES = CRAFTS + TOWNS
TEMPLATES = GENERAL + LAYOUTS + tuple(ask for _, asks in PASSAGES for ask in asks)


def _paragraphs(text: str) -> tuple[str, ...]:
    return tuple(" ".join(block.split()) for block in text.strip().split("\n\n"))


def _candidates(text: str, asks: tuple[str, ...]) -> list[str]:
    paragraphs = _paragraphs(text)
    later = range(1, len(paragraphs))
    cuts = [(0, *rest) for size in (3, 4) for rest in combinations(later, size)]
    texts: list[str] = []
    for number, cut in enumerate(cuts):
        body = "\n\n".join(paragraphs[index] for index in cut)
        for turn, question in enumerate((*GENERAL, *(asks[index] for index in cut))):
            layout = LAYOUTS[(number + turn) % len(LAYOUTS)]
            texts.append(layout.format(passage=body, question=question))
    return texts


def prompts() -> tuple[str, ...]:
    """The 1,040 questions, always the same: 130 of those that each passage offers."""
    return tuple(
        prompt
        for text, asks in PASSAGES
        for prompt in shuffled(_candidates(text, asks), lambda prompt: prompt, seed=0)[:EACH]
    )
