"""Built-in set `code`: a programming task times a language, in one of several ways of asking.

Code is formal and repeats its identifiers, yet the surrounding explanation is free.
"""

from __future__ import annotations

LANGUAGES = ("Python", "Rust", "Go", "JavaScript", "C", "Java", "Kotlin", "TypeScript")
FORMS = (
    "Write a {l} function that {x}.",
    "Write a {l} function that {x}. Add a few unit tests.",
    "In {l}, write a function that {x}, and explain its time and space complexity.",
    "Show me idiomatic {l} code for a function that {x}. Handle bad input.",
    "I'm learning {l}. Write a well-commented function that {x}, then explain it line by line.",
    "Give me two different {l} implementations of a function that {x}, and compare them.",
    "Write a small {l} command-line program around a function that {x}.",
    "My {l} function should do this: it {x}. Write the signature, the documentation and the body.",
    "Without any library beyond the standard one, write {l} code for a function that {x}.",
    "Write {l} code for a function that {x}. List the edge cases first.",
)
TASKS = (
    "merges two sorted lists into one sorted list",
    "counts how often each word occurs in a text file",
    "checks whether brackets in a string are balanced",
    "finds the longest common prefix of a list of strings",
    "converts Roman numerals to integers",
    "rotates a square matrix by ninety degrees",
    "parses a line of comma-separated values with quoted fields",
    "computes the edit distance between two words",
    "finds all pairs of numbers that add up to a target",
    "flattens a nested list of arbitrary depth",
    "evaluates an arithmetic expression with parentheses",
    "implements a least-recently-used cache with a fixed capacity",
    "reverses a singly linked list",
    "groups words that are anagrams of each other",
    "formats a number of seconds as days, hours, minutes and seconds",
    "generates all permutations of a string without repeats",
    "finds the shortest path in an unweighted graph",
    "validates an IPv4 address",
    "removes duplicates from a list and keeps the order",
    "encodes and decodes run-length compressed text",
    "finds the median of two sorted arrays",
    "splits a text into lines of at most a given width",
    "computes the moving average of a stream of numbers",
    "sorts version strings such as 1.10.2 correctly",
    "detects a cycle in a directed graph",
    "prints a calendar page for a given month and year",
    "searches a sorted, rotated array for a value",
    "turns a title into a URL slug",
    "compares two JSON documents and lists the differences",
    "schedules tasks so that each runs after those it depends on",
    "limits how often a callback may be called per second",
    "finds the k most frequent elements of a list",
    "converts a number between any two bases up to 36",
    "checks whether a Sudoku grid is valid",
    "draws a histogram of integers with text characters",
    "retries a failing operation with growing pauses",
    "implements a queue with two stacks",
    "finds the largest rectangle in a histogram",
    "reads a configuration file with sections and key-value pairs",
    "computes the checksum digit of an ISBN-13",
    "simulates one step of Conway's Game of Life",
    "matches a string against a pattern with ? and * wildcards",
    "counts the islands in a grid of land and water",
    "serialises a binary tree to a string and back",
    "finds the first non-repeating character of a string",
    "renders a table of rows with aligned columns",
    "computes the next prime after a given number",
    "watches a directory and reports new files",
    "interleaves two iterators fairly",
    "shuffles a deck of cards without bias",
    "finds overlapping intervals in a list of meetings",
    "translates text to and from Morse code",
    "multiplies two sparse matrices",
    "builds a trie and suggests completions for a prefix",
    "computes compound interest with monthly deposits",
    "solves the eight queens problem",
    "masks credit card numbers in a log line",
    "splits an amount of money into the fewest coins",
    "parses a date written in several common formats",
    "computes the convex hull of points in the plane",
    "keeps a running maximum over a sliding window",
    "undoes and redoes edits of a text buffer",
    "hides a message in the spaces of a paragraph",
    "downloads a list of pages with at most eight at a time",
)
QUERIES = (
    "Write an SQL query for {x}. State the tables and columns that you assume.",
    "Write an SQL query for {x}, then explain which index would make it fast.",
)
REPORTS = (
    "the three best-selling products of every month",
    "customers who bought something in March but nothing in April",
    "the average time between a customer's first and second order",
    "employees who earn more than their manager",
    "the running total of daily revenue",
    "books that have never been borrowed",
    "the longest streak of consecutive login days of each user",
    "duplicate e-mail addresses and how often each occurs",
    "the share of orders that arrived late, by region",
    "pairs of products that are often bought together",
)
TEMPLATES = FORMS + QUERIES


def prompts() -> tuple[str, ...]:
    """The 1,044 requests, always the same: every task in every language, asked in two ways, then the queries."""
    functions = [
        FORMS[(3 * t + 2 * n + 5 * way) % len(FORMS)].format(l=language, x=task)
        for t, task in enumerate(TASKS)
        for n, language in enumerate(LANGUAGES)
        for way in range(2)
    ]
    return (*functions, *(form.format(x=report) for report in REPORTS for form in QUERIES))
