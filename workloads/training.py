"""The prompts that drafters train on: numbers, verse, open questions, code and rewriting.

Disjoint from the built-in evaluation sets in wording, templates and topics (checked by a test), so that
nothing measured on those sets was seen in training. Must not import them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dsbench.workloads import training_math
from dsbench.workloads.rng import shuffled

Family = tuple[tuple[str, ...], tuple[str, ...]]  # forms with a place for {x}, and what may stand there

VERSE: Family = (
    (
        "Please write a short poem on {x}.",
        "Four stanzas, please, on the theme of {x}. Rhyme where it comes easily.",
        "Make up a funny verse on {x} for a birthday card.",
        "Can you put {x} into a single haiku, and then into a second one with the opposite mood?",
        "Write song words concerning {x}: two verses, a bridge, a refrain.",
        "A sonnet, please. Theme: {x}.",
        "Describe {x} in unrhymed verse, plainly, without adjectives.",
        "Write a rap of sixteen bars in praise of {x}.",
        "Turn {x} into a fairy tale told in rhyme.",
        "I need a sad little poem in which {x} stands for something lost.",
        "Let {x} speak for itself in ten lines of verse.",
        "Write a toast in verse to {x}.",
    ),
    (
        "autumn leaves",
        "a sleepy cat",
        "the road home",
        "my sister's bicycle",
        "morning coffee",
        "the stars above a campsite",
        "a crowded subway",
        "an apple pie",
        "the first snowflake",
        "a tired teacher",
        "old friendship",
        "a mountain stream",
        "a robot in love",
        "the alarm clock",
        "a rainy Sunday",
        "a sunflower",
        "the neighbourhood barber",
        "a lost key",
        "summer holidays",
        "a desert night",
        "an elephant",
        "hope",
        "the village football team",
        "a dusty bookshop",
        "a candle",
        "growing older",
        "a kite",
        "the harvest",
        "my grandfather's hat",
        "spring cleaning",
    ),
)
CONCEPTS: Family = (
    (
        "What is {x}, in plain words?",
        "Summarise the key ideas behind {x} as bullet points.",
        "Tell me about {x} as if we were chatting over lunch.",
        "What are the advantages and disadvantages of {x}?",
        "Where does one meet {x} in daily life?",
        "Write an encyclopedia entry on {x}, about 150 words long.",
        "How does {x} work? Go step by step.",
        "Name common misunderstandings concerning {x} and correct them.",
        "Draft a short talk on {x} for a general audience.",
        "Why does {x} matter nowadays?",
    ),
    (
        "solar power",
        "blood pressure",
        "machine translation",
        "recycling",
        "democracy",
        "the stock exchange",
        "encryption",
        "meditation",
        "evaporation",
        "public transport",
        "insurance",
        "the alphabet",
        "satellite navigation",
        "pollination",
        "copyright",
        "digestion",
        "a black hole",
        "nuclear fusion",
        "composting",
        "language learning",
        "wireless charging",
        "the minimum wage",
    ),
)
ADVICE: Family = (
    (
        "How should I prepare for {x}?",
        "Put together a checklist for {x}.",
        "Share five tips concerning {x}.",
        "Draft an email to a colleague regarding {x}.",
        "I'm nervous because of {x}. What might help?",
        "Which questions should one ask before {x}?",
        "Write a brief story that revolves around {x}.",
        "Outline a schedule for {x}, hour by hour.",
    ),
    (
        "a job interview",
        "a long flight",
        "the first day at a new school",
        "moving to a bigger apartment",
        "a marathon",
        "a surprise party",
        "a camping trip with toddlers",
        "a driving test",
        "adopting a puppy",
        "a piano recital",
        "a dinner with the in-laws",
        "buying a used car",
        "a visit to the dentist",
        "a science fair",
        "a power outage",
        "a house-warming",
        "an exam in statistics",
        "a week without internet",
    ),
)
PROGRAMS: Family = (
    (
        "Implement the following in Python: {x}.",
        "Python, please: {x}. Use type hints.",
        "Could you code up {x} in JavaScript?",
        "Sketch {x} in pseudocode, then in Python.",
        "I need {x}, written in C++ with comments.",
        "Provide a Java class for {x} together with an example of its use.",
        "As a coding exercise: {x}. Give a solution in Go and test it by hand.",
        "Explain how you would design {x}, and include the core code.",
    ),
    (
        "a stopwatch that can be paused",
        "a check for palindromes",
        "binary search",
        "the Fibonacci sequence with memoisation",
        "a temperature converter",
        "quicksort",
        "a to-do list stored on disk",
        "a password generator",
        "the greatest common divisor",
        "a stack with push and pop",
        "tic-tac-toe for two players",
        "vowel counting",
        "a simple bank account",
        "matrix transposition",
        "a hangman game",
        "factorials of large numbers",
        "bubble sort with early exit",
        "a phone book with search by prefix",
        "leap-year detection",
        "a dice-rolling simulator",
        "the sieve of Eratosthenes",
        "a Caesar cipher",
        "depth-first traversal of a tree",
        "a shopping cart with discounts",
        "a rock-paper-scissors opponent",
        "a countdown timer",
        "counting inversions in an array",
        "a bounded thread pool",
        "the Collatz sequence",
        "a unit converter for lengths",
    ),
)
REWRITING: Family = (
    (
        "Rephrase this more formally: {x}",
        "Make this sound friendlier: {x}",
        "Shorten this as far as you can without losing the point: {x}",
        "Correct the style of this note and return only the new version: {x}",
        "Translate into French: {x}",
        "Turn this into three bullet points: {x}",
        "Put this into the past tense: {x}",
        "Expand this into a full paragraph: {x}",
        "Repeat this text, replacing every name or role by another one: {x}",
        "Which facts does this text state? Quote them one by one: {x}",
        "Write this as a dialogue between two people: {x}",
        "Convert this into a JSON object with sensible keys: {x}",
    ),
    (
        "The meeting moves to Thursday at ten because the big room is taken. Bring your numbers, and tell Paula.",
        "Our boiler broke again last night. The landlord promised a plumber for Monday, but nobody has come.",
        "The bakery opens at six, sells out of rye bread by eight, and closes when the last roll is gone.",
        "Please return the blue folder to the front desk. It holds the contracts for the spring fair.",
        "She grew up near the harbour, studied law in Lyon, and now repairs violins in a shop behind the station.",
        "The update fixes two crashes, makes the search faster, and removes the old export button.",
        "We regret that your parcel was damaged. A replacement leaves our warehouse tomorrow and costs you nothing.",
        "The museum owns nine hundred clocks. Eleven of them run, and no two show the same hour.",
        "Kim wants to leave early, Ravi wants to take the coast road, and nobody has booked the ferry.",
        "The experiment ran for twelve days. Seedlings under red light grew tallest; those in the dark grew pale.",
        "Don't water the cactus. Do water the fern, twice a week, and talk to the parrot or it sulks.",
        "Sales rose in the north, fell in the south, and stayed level everywhere else, as the chart shows.",
        "My flight lands at noon. If the train is on time I can be at the hotel by two, hungry and tired.",
        "The committee read forty applications, invited six people, and chose the only one who had asked a question.",
        "Add the flour slowly, stir until the lumps are gone, and leave the batter in a cool place for an hour.",
        "The old bridge will be shut from May to August. Cyclists may use the footpath; cars must take Elm Road.",
        "I liked the film less than the book, but the music was lovely and the dog deserved a prize.",
        "Two goats escaped on Friday. One was found in the chapel, the other on the roof of the fire station.",
        "Tom forgot the tickets, Nina forgot the date, and they still had the best evening of the year.",
        "The warranty covers parts for three years and labour for one. Keep the receipt and the original box.",
        "After the storm the volunteers cleared forty fallen trees and found the bench that had vanished in March.",
        "The course has ten lessons. Each ends with a quiz, and those who pass eight receive a certificate by post.",
    ),
)
FAMILIES: Mapping[str, Family] = MappingProxyType(
    {"verse": VERSE, "concepts": CONCEPTS, "advice": ADVICE, "programs": PROGRAMS, "rewriting": REWRITING}
)
TEMPLATES = training_math.TEMPLATES + tuple(form for forms, _ in FAMILIES.values() for form in forms)
SUBJECTS = tuple(subject for _, subjects in FAMILIES.values() for subject in subjects)


def training_prompts() -> tuple[str, ...]:
    """The 1,800 training prompts, in a fixed mixed order: any prefix holds all kinds in about their shares."""
    texts = list(training_math.prompts())
    for forms, subjects in FAMILIES.values():
        texts += [form.format(x=subject) for subject in subjects for form in forms]
    return tuple(shuffled(texts, lambda text: text, seed=0))
