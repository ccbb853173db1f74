"""Facts planted in a long text, and questions that refer to earlier turns."""

import random
import re

from .chat import Conversation, Turn
from .words import (ADJECTIVES, CITIES, COLORS, DAYS, FRUITS, NAMES, NOUNS, ROOMS, THINGS, any_word, digits, distinct,
                    pseudo_word)

PLANTED = ["The code of {k} is {v}.", "Remember: {k} = {v}.", "Note that {k} has the value {v}.",
           "The value for {k} is {v}.", "Key {k}, value {v}.", "{k}: {v}."]
BARE = "{}?"  # the hardest to tell from the text before it
ASKED = ["What is the code of {}?", "Which value belongs to {}?", "What is the value of {}?", BARE,
         "Give me the value of {}.", "What was {}?", "Tell me the code for {}.", "Find the value of {}."]
INTROS = ["Read this text and answer the question below.", "Here is a long text.", "Keep the values in this text in mind.",
          "The following text hides some values.", "Text:"]

FILLER = [
    "{n} walks from {c} to {d} on {day}.", "The {t} in the {r} is {col}.", "On {day} the market of {c} sells {f}.",
    "{n} and {m} talk about the {a} {o}.", "It rains in {c}, and the {o} stays {a}.", "Nobody in {c} has seen the {t} of {n}.",
    "The {a} {o} stands near the {p}.", "{n} paints the {t} {col} and goes to the {r}.", "{m} brings {f} for {n}.",
    "Every {day} a train leaves {c} for {d}.", "A {col} {t} lies under the {o}.", "{n} writes a letter to {m} about {c}.",
    "The {o} of {c} is {a} this year.", "In the {r} there is a {a} {t}.", "{n} counts {x} {f} in the {r}.",
    "The road to {d} is {a} and {b}.", "{m} calls it {w}, but {n} calls it {v}.", "The {p} opens at {h} on {day}.",
]


TOKENS_PER_SENTENCE = 9.35


SLOTS = {"n": NAMES, "m": NAMES, "c": CITIES, "d": CITIES, "day": DAYS, "t": THINGS, "r": ROOMS, "col": COLORS, "f": FRUITS,
         "a": ADJECTIVES, "b": ADJECTIVES, "o": NOUNS, "p": NOUNS, "x": range(2, 100), "h": range(6, 12)}
FILLER_SLOTS = [(template, re.findall(r"{(\w+)}", template)) for template in FILLER]


def filler(rng: random.Random) -> str:
    template, slots = rng.choice(FILLER_SLOTS)
    return template.format(**{slot: rng.choice(SLOTS[slot]) if slot in SLOTS else pseudo_word(rng) for slot in slots})


def key(rng: random.Random) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def value(rng: random.Random) -> str:
    return digits(rng, rng.randint(3, 6)) if rng.random() < 0.7 else pseudo_word(rng)


def text_with(rng: random.Random, tokens: int, planted: dict) -> str:
    """About `tokens` tokens of filler that hide the planted keys and values."""
    style = rng.choice(PLANTED) if rng.random() < 0.5 else ""
    lines = [filler(rng) for _ in range(max(1, int(tokens / TOKENS_PER_SENTENCE) - len(planted)))]
    for k, v in planted.items():
        lines.insert(rng.randint(0, len(lines)), (style or rng.choice(PLANTED)).format(k=k, v=v))
    return rng.choice((" ", "\n")).join(lines)


def recall_in_parts(rng: random.Random, tokens: int) -> Conversation:
    """Every turn adds text and then asks for something of any turn: one long text asks after its end only once,
    and where the question begins is what is hard to see there."""
    keys = iter(distinct(rng, max(4, tokens // 60), key))
    known, turns, length = {}, [], 0
    while length < tokens:
        part = int(60 * (1500 / 60) ** rng.random())
        added = {k: value(rng) for k, _ in zip(keys, range(rng.randint(1, 4)))}
        known |= added
        length += part
        asked = rng.choice(list(added) or list(known)) if rng.random() < 0.4 else rng.choice(list(known))
        question = (BARE if rng.random() < 0.5 else rng.choice(ASKED)).format(asked)
        turns += [Turn("user", f"{rng.choice(INTROS)}\n\n{text_with(rng, part, added)}\n\n{question}"),
                  Turn("assistant", f"It is {known[asked]}.", f"Look for {asked}.")]
    return Conversation("recall", turns, thinking=rng.random() < 0.7)


def recall(rng: random.Random, tokens: int, questions: int | None = None, focus: bool = False) -> Conversation:
    """A text of about `tokens` tokens; `questions` None asks many, as in training; `focus` begins with hard ones."""
    if focus and rng.random() < 0.6:
        return recall_in_parts(rng, tokens)
    sentences = max(2, int(tokens / TOKENS_PER_SENTENCE))
    planted = min(max(2, sentences // 3), rng.randint(4, 12) if questions else rng.randint(3, 40))
    keys = distinct(rng, planted, key)
    values = [value(rng) for _ in keys]
    text = text_with(rng, tokens, dict(zip(keys, values)))
    asked = min(questions or rng.randint(1, 4) + tokens // 64, planted, 24)
    turns = []
    for n, i in enumerate(rng.sample(range(planted), asked)):
        ask = (BARE if focus and n == 0 and rng.random() < 0.35 else rng.choice(ASKED)).format(keys[i])
        asked_text = f"{rng.choice(INTROS)}\n\n{text}\n\n{ask}" if n == 0 else ask
        turns += [Turn("user", asked_text), Turn("assistant", f"It is {values[i]}.", f"Look for {keys[i]}.")]
    return Conversation("recall", turns, thinking=rng.random() < 0.5)


ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]


def reference(rng: random.Random) -> Conversation:
    """A list in the first turn; later turns name its entries by place."""
    count = rng.randint(3, 6)
    items = distinct(rng, count, any_word)
    kind = rng.random()
    if kind < 0.5:
        values = [value(rng) for _ in items]
        listing = rng.choice(("\n", "; ", ", ")).join(f"{k} {v}" if kind < 0.25 else f"{k}: {v}" for k, v in zip(items, values))
        head = rng.choice(["Here are some codes", "These are my codes", "Codes", "Keep these values"])
        answers = [f"The code of {k} is {v}." for k, v in zip(items, values)]
        what = rng.choice(["What is the {} code?", "Which is the {} code?", "Tell me the {} one."])
    else:
        listing = rng.choice((", ", "\n", "; ")).join(items)
        head = rng.choice(["Here is my list", "These are my things", "My list", "I have these items"])
        answers = [f"The {{}} one is {k}." for k in items]
        what = rng.choice(["What is the {} item?", "Which one is {}?", "What comes {}?", "Name the {} one."])
    turns = []
    asked = rng.sample(range(count), rng.randint(2, min(4, count)))
    for n, i in enumerate(asked):
        place = "last" if i == count - 1 and rng.random() < 0.5 else ORDINALS[i]
        ask = what.format(place) if n == 0 else rng.choice(
            ["And the {} one?", "And the {}?", "and the {} one?", "What about the {} one?", "The {}?", "Now the {} one."]).format(place)
        text = f"{head}:{rng.choice((' ', chr(10)))}{listing}\n{ask}" if n == 0 else ask
        turns += [Turn("user", text), Turn("assistant", answers[i].format(place), f"The {place} is entry {i + 1}.")]
    return Conversation("reference", turns, thinking=rng.random() < 0.6)
