"""What functions give back, and the one answer to it, the same whatever the function.

    {"id": 5, "owner": {"name": "Ada"}}     The id is 5 and the name of the owner is Ada.
    {"tags": ["red", "new"], "owner": null} The tags are red, new and the owner is none.
    ["red", "new"]                          The results: red, new.
    [{"id": 5}, {"id": 7}]                  The results: id 5; id 7.
    Sunny, 22 degrees                       The result: Sunny, 22 degrees
    {"error": "not found"}                  The function failed: not found.
    {"ok": true}                            That is done.
"""

import json
import random

from .made_up import STRINGS, number_value, parameter, text_value
from .words import CITIES, DAYS, EVERYDAY, any_word, distinct, new_name

RESULTS = """temperature condition price total count status id result name value title message url time date currency humidity wind
distance duration rate balance score summary location""".split()
ERRORS = ["not found", "{w} not found", "permission denied", "timeout", "no connection", "invalid {w}", "internal error", "{w} does not exist",
          "too many requests", "access denied", "service unavailable", "no such {w}", "quota exceeded", "{w} is locked"]
# As programs write for people
SENTENCES = ["{W}, {i} degrees", "{i} {w} found", "The {w} {t} is {w2}.", "{N} was moved to {t}", "Done: {t}", "{t} -> {t2}", "{W} since {d}",
             "{c}: {w}, {i} %", "No {w} for {t}.", "{i}", "{t}", "{t}: {i}", "{i} of {i2} done", "{N} ({c}), {w} {i}", "OK", "{W} {w2} {i}.",
             "Your {w} is {w2}. See {t}.", "Saved as {t}", "{d}, {i}:{i2}", "{w}={i} {w2}={t}", "{N} said: {w} {w2}!",
             "{w}: {i}\n{w2}: {t}", "{i} {w}:\n- {t}\n- {t2}", "Total: {i}.{i2} euros"]
DONE = ("ok", "done", "success")
# Up to which share of all results; the rest are plain objects
KINDS = ((0.08, "error"), (0.12, "words"), (0.17, "sentence"), (0.29, "done"), (0.34, "list"), (0.38, "objects"), (0.43, "nested"))


def spoken(value: object) -> str:
    """A value in an answer."""
    if isinstance(value, list):
        return "; ".join(pairs(item) for item in value) if value and isinstance(value[0], dict) else ", ".join(map(spoken, value)) or "none"
    return "none" if value is None else value if isinstance(value, str) else json.dumps(value)


def pairs(item: dict) -> str:
    return ", ".join(f"{name} {spoken(value)}" for name, value in item.items())


def answer_to(result: object) -> str:
    """An object's fields one by one; a field of an inner object is one "of the" outer name."""
    if isinstance(result, str):
        return f"The result: {result}"
    if isinstance(result, list):
        return f"The results: {spoken(result)}."
    name, value = next(iter(result.items()))
    if len(result) == 1 and name == "error":
        return f"The function failed: {spoken(value)}."
    if len(result) == 1 and name in DONE and isinstance(value, bool):
        return "That is done." if value else "That did not work."
    flat = {}
    for name, value in result.items():
        flat |= {f"{inner} of the {name}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return "The " + " and the ".join(f"{name} {'are' if isinstance(value, list) else 'is'} {spoken(value)}" for name, value in flat.items()) + "."


def fields(rng: random.Random, count: int) -> list:
    return distinct(rng, count, lambda r: r.choice(RESULTS) if r.random() < 0.4 else parameter(r))


def plain_value(rng: random.Random, field: str) -> object:
    kind = rng.random()
    if kind < 0.06:
        return rng.choice((True, False, None, round(rng.uniform(0, 99), 1)))
    return text_value(rng) if field in STRINGS or kind < 0.45 else number_value(rng)


def plain_object(rng: random.Random, count: int) -> dict:
    return {field: plain_value(rng, field) for field in fields(rng, count)}


def plain_list(rng: random.Random) -> list:
    count = rng.choice((0, 1, 2, 2, 3, 3, 4))
    return [number_value(rng) for _ in range(count)] if rng.random() < 0.3 else [text_value(rng) for _ in range(count)]


def objects(rng: random.Random) -> list:
    names = fields(rng, rng.choice((1, 2, 2)))
    return [{name: plain_value(rng, name) for name in names} for _ in range(rng.choice((1, 2, 2, 3)))]


def nested(rng: random.Random) -> dict:
    """An object with an inner one, or with a list of objects."""
    found = plain_object(rng, rng.choice((1, 2)))
    name = rng.choice(list(found))
    found[name] = objects(rng) if rng.random() < 0.3 else some_object(rng) if rng.random() < 0.3 else plain_object(rng, rng.choice((1, 2, 2)))
    return found


def sentence(rng: random.Random) -> str:
    w, w2 = any_word(rng), rng.choice(EVERYDAY)
    return rng.choice(SENTENCES).format(w=w, W=w.capitalize(), w2=w2, t=text_value(rng), t2=text_value(rng), N=new_name(rng), d=rng.choice(DAYS),
                                        c=rng.choice(CITIES), i=rng.randint(0, 99), i2=rng.randint(10, 99))


def almost(rng: random.Random, known: dict) -> dict:
    """Fields that another function gives, but one by another name, one more or one less."""
    names, kind = list(known), rng.random()
    at = rng.randrange(len(names))
    if kind < 0.25 and len(names) > 1:
        del names[at]
    elif kind < 0.4:
        names.insert(at, rng.choice(RESULTS))
    else:
        names[at] = rng.choice(RESULTS + EVERYDAY)
    return {name: known[name] if name in known else plain_value(rng, name) for name in names}


def failure(rng: random.Random) -> dict:
    return {"error": rng.choice(ERRORS).format(w=any_word(rng)) if rng.random() < 0.7 else f"{any_word(rng)} {any_word(rng)}"}


def some_object(rng: random.Random) -> dict:
    found = plain_object(rng, rng.choice((1, 1, 2, 2, 3)))
    if rng.random() < 0.15:
        found[rng.choice(list(found))] = plain_list(rng)
    return found


DRAWS = {"error": failure, "words": lambda rng: " ".join(text_value(rng) for _ in range(rng.randint(1, 5))), "sentence": sentence,
         "done": lambda rng: {rng.choice(DONE): rng.random() < 0.85}, "list": plain_list, "objects": objects, "nested": nested}


def written(result: object) -> str:
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def open_result(rng: random.Random) -> object:
    """Whatever the function."""
    at = rng.random()
    return next((DRAWS[kind] for below, kind in KINDS if at < below), some_object)(rng)
