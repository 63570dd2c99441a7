"""Built-in set `poetry`: a verse form times a subject, with a small demand that changes from prompt to prompt.

The least predictable of the built-in sets: the next word of a poem is rarely forced.
"""

from __future__ import annotations

FORMS = (
    "Write a Shakespearean sonnet about {x}.",
    "Write three linked haiku about {x}.",
    "Compose a limerick, clean enough for a strict aunt, about {x}.",
    "Write a villanelle whose refrains concern {x}.",
    "Give me a free-verse poem of about twenty lines about {x}.",
    "Compose a ballad in quatrains that tells a story about {x}.",
    "Write an ode that addresses {x} directly, as if it could hear you.",
    "Write a prose poem on {x}, in a single paragraph.",
    "Write the lyrics of a folk song about {x}, with a chorus that comes back twice.",
    "Compose an elegy for {x}.",
    "Write a list poem in which every line begins with a different verb and all of it circles {x}.",
    "Write a nursery rhyme with a steady beat about {x}.",
    "Write a pantoum about {x}.",
    "Compose a blank-verse monologue spoken by someone who has just come upon {x}.",
    "In rhyming couplets, and in no more than sixteen lines, write a poem about {x}.",
    "Write an acrostic poem on a fitting word of your choice about {x}.",
    "Write a tanka and a longer poem that answers it, both about {x}.",
    "Compose a riddle in verse whose answer is {x}, without naming it.",
    "Write a surreal poem in which {x} turns out to be something else entirely.",
    "Write a lullaby about {x}.",
)
SUBJECTS = (
    "a lighthouse in fog",
    "the last train of the evening",
    "an unused piano",
    "snow on a car park",
    "a letter that was never sent",
    "a kitchen at four in the morning",
    "the smell of rain on hot stone",
    "a fox crossing a motorway",
    "a broken umbrella",
    "an old wristwatch",
    "a market in a harbour town",
    "the quiet after an argument",
    "a heron at a canal lock",
    "the first day of retirement",
    "a house being emptied",
    "a bridge between two villages",
    "a moth in a lampshade",
    "the sea in winter",
    "a grandmother's sewing box",
    "a city seen from an aeroplane",
    "an orchard gone wild",
    "a missed telephone call",
    "the moon over a factory",
    "a stray glove on a railing",
    "a swimming pool in October",
    "the sound of bells across fields",
    "a queue at a bakery",
    "a map with a coffee stain",
    "a dog waiting at a door",
    "the language of crows",
    "an empty theatre",
    "a garden shed in August",
    "a river that changed its course",
    "a night shift at a hospital",
    "the colour blue",
    "a postcard found in a book",
    "a lift stuck between floors",
    "a field of wind turbines",
    "a pair of worn-out boots",
    "the day the clocks go back",
    "a spider rebuilding its web",
    "a bus stop in the desert",
    "a chessboard with one piece missing",
    "a thunderstorm at a picnic",
    "the silence of a library",
    "a paper boat on a pond",
    "an astronaut's homesickness",
    "the taste of a wild plum",
    "a carpenter's hands",
    "a shadow on a staircase",
    "a fishing boat named after a stranger",
    "a glacier in retreat",
)
DEMANDS = (
    "",
    " Avoid the words heart, soul and dream.",
    " Let it end on an image, not on a thought.",
    " Keep the tone dry and a little amused.",
    " Use at least three sounds and two smells.",
    " It should be set in one particular hour of the day.",
    " Let somebody unexpected speak in the last lines.",
)
TEMPLATES = FORMS


def prompts() -> tuple[str, ...]:
    """The 1,040 requests, always the same: every subject in every form, the demands taken in turn."""
    return tuple(
        form.format(x=subject) + DEMANDS[(3 * s + f) % len(DEMANDS)]
        for s, subject in enumerate(SUBJECTS)
        for f, form in enumerate(FORMS)
    )
