"""Names of parameters as programs have them, values that nobody wrote before, and how several are said."""

import random

from .values import ENDINGS, file_path, url, version, web_host
from .words import EVERYDAY, LETTERS, any_word, code, letters, new_name, new_word, odd

STRINGS = "id name place owner user target label mode color path group status kind tag source shelf zone code title type".split()
NUMBERS = "level amount count size speed limit weight price width height seconds hours days pages priority volume year distance".split()
HEX, SIGNS = "0123456789abcdef", "0123456789" + LETTERS + LETTERS.upper()
FORMS = [version, web_host, url, lambda rng: file_path(rng, ENDINGS), lambda rng: f"{new_word(rng)}@{web_host(rng)}"]


def parameter(rng: random.Random) -> str:
    """A name as programs have them."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(STRINGS + NUMBERS)
    if kind < 0.6:
        return rng.choice(EVERYDAY)
    if kind < 0.76:
        return f"{rng.choice(EVERYDAY)}_{rng.choice(EVERYDAY)}"
    if kind < 0.85:
        return rng.choice(EVERYDAY) + rng.choice(EVERYDAY).capitalize()
    return new_word(rng)


def mixed(rng: random.Random) -> str:
    """Letters of both cases and digits, or hexadecimal: what only exact copying gets right."""
    signs = HEX if rng.random() < 0.4 else SIGNS
    return rng.choice(signs[10:]) + "".join(rng.choice(signs) for _ in range(rng.randint(3, 8)))  # no number


def text_value(rng: random.Random) -> str:
    """One word without a space, most of them never written before."""
    kind = rng.random()
    if kind < 0.25:
        return new_word(rng)
    if kind < 0.35:
        return new_name(rng)
    if kind < 0.55:
        return code(rng)
    if kind < 0.68:
        return letters(rng)
    if kind < 0.82:
        return mixed(rng) if kind < 0.76 else rng.choice(FORMS)(rng)
    return odd(rng) if kind < 0.87 else any_word(rng)


def number_value(rng: random.Random) -> object:
    kind = rng.random()
    return rng.randint(1, 9999) if kind < 0.9 else rng.randint(-99, 0) if kind < 0.95 else rng.randint(10000, 9999999)


def spoken_list(rng: random.Random, pairs: list) -> str:
    if len(pairs) == 1:
        return pairs[0]
    if rng.random() < 0.5:
        return ", ".join(pairs)
    return ", ".join(pairs[:-1]) + " and " + pairs[-1]
