"""First words of user turns, which the target goes on from: so it asks itself not only what it likes to ask.

Kinds of requests that the training prompts have as well: numbers, verse, code, writing, questions, long material.
"""

from __future__ import annotations

NUMBERS = (
    "Maria has", "A farmer", "Tom bought", "There are", "A train", "In a class of", "A store sells", "Lucy reads",
    "If a", "How many", "John earns", "A recipe", "It takes", "The sum of", "Solve", "Calculate", "Let f(x)",
    "Prove that", "Suppose that", "Anna and her brother", "Every morning,", "A box contains", "At the school fair,",
    "What is the probability that", "Mr. Lee", "A car travels", "Three friends", "Sarah wants to save", "Half of the",
    "The price of",
)  # fmt: skip
VERSE = (
    "Write a poem about", "Write a haiku", "Compose a sonnet", "Write a song about", "Write a limerick", "Write a rap",
    "Write a short poem", "Create a poem", "Write lyrics for", "Write a rhyming", "Please write a poem",
    "Write a ballad", "Write an ode to",
)  # fmt: skip
CODE = (
    "Write a Python", "Write a function", "How do I", "Here is my code:\n```", "Given an array", "Implement",
    "Write a SQL query", "I am getting this error", "Use C++ to", "In JavaScript,", "Write a shell script", "Refactor",
    "Explain this code:\n```python\n", "Write a program that", "Create a React", "Write a regex", "Design a class",
    "In Rust,", "How can I optimize", "Write unit tests for",
)  # fmt: skip
WRITING = (
    "Write a story", "Write an essay", "Write a letter", "Rewrite", "Imagine", "You are a", "I want you to act as",
    "Create a", "Draft an email", "Write a scene", "Write a dialogue", "Describe a", "Write a product description",
    "Continue the story:", "Write a blog post", "Make a table", "Develop a character",
)  # fmt: skip
QUESTIONS = (
    "Explain", "What is the difference between", "Why", "Can you", "I have a", "Help me", "Give me", "Compare",
    "What are the", "How would you", "Analyze", "Summarize", "Translate", "List", "Discuss", "Design a", "Consider",
    "Please", "Based on", "I need", "What would happen if", "Is it", "Provide", "Given the following",
)  # fmt: skip


def training_openers() -> list[str]:
    """All of them, in a fixed order."""
    return [*NUMBERS, *VERSE, *CODE, *WRITING, *QUESTIONS]
