"""Facts planted in a long text, and questions that refer to earlier turns."""

import random
import re

from .chat import Conversation, Turn
from .words import (ADJECTIVES, CITIES, COLORS, DAYS, FRUITS, NAMES, NOUNS, ROOMS, SURNAMES, THINGS, any_word, code, digits,
                    distinct, new_name, new_word, person)

PLANTED = ["The code of {k} is {v}.", "Remember: {k} = {v}.", "Note that {k} has the value {v}.",
           "The value for {k} is {v}.", "Key {k}, value {v}.", "{k}: {v}."]
BARE = "{}?"  # the hardest to tell from the text before it
ASKED = ["What is the code of {}?", "Which value belongs to {}?", "What is the value of {}?", BARE,
         "Give me the value of {}.", "What was {}?", "Tell me the code for {}.", "Find the value of {}.",
         "What does the text say about {}?", "Please tell me the value of {}.", "{}: what is the value?"]
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
    return template.format(**{slot: rng.choice(SLOTS[slot]) if slot in SLOTS else new_word(rng) for slot in slots})


SERVICES = "server host node door room box team order user device port shelf unit task line file".split()


def key(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if kind < 0.6:
        return f"{rng.choice(SERVICES) if rng.random() < 0.6 else new_word(rng)}{rng.choice('- _')}{rng.randint(1, 99)}"
    if kind < 0.7:
        return person(rng) if rng.random() < 0.5 else f"{person(rng)} {rng.choice(SURNAMES) if rng.random() < 0.5 else new_name(rng)}"
    if kind < 0.85:
        return code(rng)
    return new_word(rng) if kind < 0.95 else f"{rng.choice(ADJECTIVES)} {new_word(rng)}"


def keys_of(rng: random.Random, count: int) -> list:
    """Distinct keys; sometimes all of one shape, which are the hardest to tell apart."""
    if rng.random() < 0.2:
        stem = rng.choice(SERVICES) if rng.random() < 0.5 else new_word(rng)
        return distinct(rng, count, lambda r: f"{stem}-{r.randint(1, 20 + 3 * count)}")
    return distinct(rng, count, key)


def value(rng: random.Random) -> str:
    kind = rng.random()
    return digits(rng, rng.randint(3, 6)) if kind < 0.6 else new_word(rng) if kind < 0.8 else code(rng)


def missing(rng: random.Random, keys: list) -> str:
    """A key that is not among these, often nearly one of them."""
    while True:
        near, kind = rng.choice(keys), rng.random()
        if kind < 0.3 and "-" in near:
            found = near.rsplit("-", 1)[0] + f"-{rng.randint(1, 200)}"
        elif kind < 0.6 and " " in near:
            head, tail = near.rsplit(" ", 1)
            found = f"{head} {rng.choice(NOUNS)}" if rng.random() < 0.5 else f"{rng.choice(ADJECTIVES)} {tail}"
        else:
            found = key(rng)
        if found not in keys:
            return found


ABSENT_SHARE = 0.12


def answer_for(k: str, known: dict) -> Turn:
    if k in known:
        return Turn("assistant", f"It is {known[k]}.", f"Look for {k}.")
    return Turn("assistant", f"The text gives no value for {k}.", f"Look for {k}. It is not there.")


def text_with(rng: random.Random, tokens: int, planted: dict) -> str:
    """About `tokens` tokens of filler that hide the planted keys and values."""
    style = rng.choice(PLANTED) if rng.random() < 0.5 else ""
    lines = [filler(rng) for _ in range(max(1, int(tokens / TOKENS_PER_SENTENCE) - len(planted)))]
    for k, v in planted.items():
        lines.insert(rng.randint(0, len(lines)), (style or rng.choice(PLANTED)).format(k=k, v=v))
    return rng.choice((" ", "\n")).join(lines)


def recall_of_facts(rng: random.Random) -> Conversation:
    """Some facts and nothing around them, as a person types them: "server-7 = 1234. rack-2 = 5678. What is server-7?" """
    keys = keys_of(rng, rng.randint(2, 6))
    known = {k: value(rng) for k in keys}
    style = rng.choice(PLANTED)
    text = rng.choice((" ", "\n")).join(style.format(k=k, v=v) for k, v in known.items())

    def ask() -> tuple:
        k = missing(rng, keys) if rng.random() < ABSENT_SHARE else rng.choice(keys)
        asked = rng.choice([*ASKED, "What is {}?", "And {}?"]).format(k)
        intro = f"{rng.choice(INTROS)}\n\n" if rng.random() < 0.2 else ""
        return f"{intro}{text}{rng.choice((' ', chr(10), chr(10) * 2))}{asked}", k

    asked, k = rng.user(ask)
    return Conversation("recall", [Turn("user", asked), answer_for(k, known)], thinking=rng.random() < 0.5)


def recall_in_parts(rng: random.Random, tokens: int) -> Conversation:
    """Every turn adds text and then asks for something of any turn: one long text asks after its end only once,
    and where the question begins is what is hard to see there."""
    keys = iter(keys_of(rng, max(4, tokens // 60)))
    known, turns, length = {}, [], 0
    while length < tokens:
        part = int(60 * (1500 / 60) ** rng.random())
        added = {k: value(rng) for _, k in zip(range(rng.randint(1, 4)), keys)}
        known |= added
        length += part
        text = text_with(rng, part, added)
        pool = list(added) if added and rng.random() < 0.4 else list(known)

        def ask() -> tuple:
            k = missing(rng, list(known)) if rng.random() < ABSENT_SHARE else rng.choice(pool)
            question = (BARE if rng.random() < 0.5 else rng.choice(ASKED)).format(k)
            return f"{rng.choice(INTROS)}\n\n{text}\n\n{question}", k

        asked, k = rng.user(ask)
        turns += [Turn("user", asked), answer_for(k, known)]
    return Conversation("recall", turns, thinking=rng.random() < 0.7, dense=rng.random() < 0.7)


def recall(rng: random.Random, tokens: int, questions: int | None = None, hard: bool = False, absent: bool = False) -> Conversation:
    """A text of about `tokens` tokens; `questions` None asks many, as in training; `hard` begins with hard ones;
    `absent` asks for what is not there."""
    if hard and rng.random() < 0.6:
        return recall_in_parts(rng, tokens)
    sentences = max(2, int(tokens / TOKENS_PER_SENTENCE))
    planted = min(max(2, sentences // 3), rng.randint(4, 12) if questions else rng.randint(3, 40))
    keys = keys_of(rng, planted)
    known = {k: value(rng) for k in keys}
    text = text_with(rng, tokens, known)
    left = rng.sample(keys, min(questions or rng.randint(1, 4) + tokens // 64, planted, 24))
    absent_share = float(absent) if questions else ABSENT_SHARE
    turns: list = []
    for n in range(len(left)):

        def ask() -> tuple:
            k = missing(rng, keys) if rng.random() < absent_share else rng.choice(keys if questions else left)
            asked = (BARE if hard and n == 0 and rng.random() < 0.35 else rng.choice(ASKED)).format(k)
            return f"{rng.choice(INTROS)}\n\n{text}\n\n{asked}" if n == 0 else asked, k

        asked, k = rng.user(ask)
        left = [other for other in left if other != k] or left
        turns += [Turn("user", asked), answer_for(k, known)]
    many = not questions and rng.random() < 0.75
    return Conversation("recall", turns, thinking=rng.random() < 0.5, dense=many)


ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]


SHORT_ORDINALS = ["1st", "2nd", "3rd", "4th", "5th", "6th"]
FOLLOW = ["{} the {} one?", "{} the {}?", "{} what about the {} one?", "{} what is the {} one?", "{} the {} one, please.",
          "{} tell me the {} one.", "{} which is the {}?", "{} I also need the {} one."]
JOINTS = ["And", "and", "Now", "OK, and", "Thanks, and", "Then", "Good, and", "Next:", "Well,", "Also:", "Yes, and", "Fine. And"]


def reference(rng: random.Random) -> Conversation:
    """A list in the first turn; later turns name its entries by place."""
    count = rng.randint(3, 6)
    items = distinct(rng, count, lambda r: any_word(r) if r.random() < 0.7 else key(r))
    kind = rng.random()
    if kind < 0.5:
        values = [value(rng) for _ in items]
        mark = rng.choice((" ", ": ", ": ")) if all(" " not in k + v for k, v in zip(items, values)) else ": "
        listing = rng.choice(("\n", "; ", ", ")).join(f"{k}{mark}{v}" for k, v in zip(items, values))
        heads = ["Here are some codes", "These are my codes", "Codes", "Keep these values"]
        answers = [f"The code of {k} is {v}." for k, v in zip(items, values)]
        wanted = ["What is the {} code?", "Which is the {} code?", "Tell me the {} one."]
    else:
        listing = rng.choice((", ", "\n", "; ")).join(items)
        heads = ["Here is my list", "These are my things", "My list", "I have these items"]
        answers = [f"The {{}} one is {k}." for k in items]
        wanted = ["What is the {} item?", "Which one is {}?", "What comes {}?", "Name the {} one."]
    turns: list = []
    left = list(range(count))
    for n in range(rng.randint(2, min(4, count))):

        def ask() -> tuple:
            i = rng.choice(left)
            place = "last" if i == count - 1 and rng.random() < 0.5 else ORDINALS[i]
            shown = SHORT_ORDINALS[i] if place != "last" and rng.random() < 0.15 else place
            text = f"{rng.choice(heads)}:{rng.choice((' ', chr(10)))}{listing}\n{rng.choice(wanted).format(shown)}"
            return text if n == 0 else rng.choice(FOLLOW).format(rng.choice(JOINTS), shown), i, place

        asked, i, place = rng.user(ask)
        left.remove(i)
        turns += [Turn("user", asked), Turn("assistant", answers[i].replace("{}", place), f"The {place} is entry {i + 1}.")]
    return Conversation("reference", turns, thinking=rng.random() < 0.6)
