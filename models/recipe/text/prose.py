"""Running English and other text that people paste, made by the grammar in prose.txt.

    @ name
    alternatives, separated by " | "; [name] stands for one of another rule, [name+] for one with a capital, [%] for what is planted

    say(rng, "story")      # a sentence of one rule
"""

import re
from pathlib import Path

from .clauses import JOBS
from .values import MONTHS
from .words import CITIES, COLORS, DAYS, EVERYDAY, FRUITS, NAMES, NOUNS, ROOMS, SURNAMES, THINGS, Dice, code, new_name, new_word

REFERENCE = re.compile(r"\[([\w%]+)(\+?)\]")
POOLS = {"name": NAMES, "surname": SURNAMES, "city": CITIES, "day": DAYS, "month": MONTHS, "color": COLORS, "fruit": FRUITS, "object": THINGS,
         "nature": NOUNS, "room": ROOMS, "job": JOBS, "word": EVERYDAY}
NEW_SHARE = 0.15  # of names and places that no list holds


def whole(low: int, high: int):
    return lambda rng: str(low + int(rng.random() * (high - low + 1)))


MADE = {"year": whole(1650, 2031), "hour": whole(1, 12), "number": whole(2, 120), "number3": whole(100, 999), "big": whole(1000, 900000),
        "clock": lambda rng: f"{int(rng.random() * 24)}:{int(rng.random() * 6)}{int(rng.random() * 10)}",
        "ip": lambda rng: f"10.{int(rng.random() * 255)}.{int(rng.random() * 255)}.{int(rng.random() * 255)}",
        "made": new_word, "ident": lambda rng: code(rng) if rng.random() < 0.3 else f"{rng.choice(EVERYDAY)}_{rng.choice(EVERYDAY)}",
        "lname": lambda rng: rng.choice(NAMES).lower()}


def _capital(draw):
    def capital(rng: Dice) -> str:
        text = draw(rng)
        return text[0].upper() + text[1:]
    return capital


def _pool(name: str, words: list):
    if name in ("name", "city"):
        return lambda rng: new_name(rng) if rng.random() < NEW_SHARE else words[int(rng.random() * len(words))]
    return lambda rng: words[int(rng.random() * len(words))]


def read_grammar(path: Path) -> dict:
    """{rule: its draw}. Each alternative is a text with places and what draws for them, so that a sentence costs few steps."""
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    rules = {line[2:]: text.split(" | ") for line, text in zip(lines[::2], lines[1::2])}
    draws: dict = {name: _pool(name, words) for name, words in POOLS.items()} | MADE
    alternatives: dict = {name: [] for name in rules}

    def rule(found: list):
        def draw(rng: Dice) -> str:
            text, parts = found[int(rng.random() * len(found))]
            return text % tuple([part(rng) for part in parts]) if parts else text
        return draw

    draws |= {name: _pool("", texts) if not any("[" in text for text in texts) else rule(alternatives[name]) for name, texts in rules.items()}
    for name, texts in rules.items():
        for text in texts:
            held = text.replace("[%]", "\0").replace("[%+]", "\1")
            references = REFERENCE.findall(held)
            plain = REFERENCE.sub("%s", held.replace("%", "%%")) if references else held
            alternatives[name].append((plain, [_capital(draws[part]) if up else draws[part] for part, up in references]))
    return draws


RULES = read_grammar(Path(__file__).parent / "prose.txt")


def say(rng: Dice, rule: str) -> str:
    return RULES[rule](rng)


def carried(rng: Dice, rule: str, clause: str, begun: str) -> str:
    """A sentence of the rule that says the clause, `begun` where it begins the sentence."""
    return RULES[rule](rng).replace("\0", clause).replace("\1", begun)
