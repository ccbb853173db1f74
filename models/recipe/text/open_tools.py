"""Functions that are made up: name, description and parameters are new, so choosing and calling means reading them."""

import json
import random

from .words import NOUNS, THINGS, any_word, code, distinct, new_name, new_word

VERBS = """open close lock unlock start stop pause restart list find measure clean paint move copy rename delete sort print scan cancel
rent repair water feed charge park wash pack ship weigh mix heat cool dim archive publish merge split label block create update
fetch build install remove store load invite assign approve reject share hide show rotate refill polish fold
inspect register export import reserve track join mark tune empty fill""".split()
STRINGS = "id name place owner user target label mode color path group status kind tag source shelf zone code title type".split()
NUMBERS = "level amount count size speed limit weight price width height seconds hours days pages priority volume year distance".split()
DESCRIPTIONS = ["{S} a {n}", "{S} the {n}.", "{V} a {n}", "This function {s} a {n}", "Use it to {v} a {n}.", "To {v} the {n} of a user"]
MEANINGS = ["the {p} of the {n}", "{p}", "which {p}", "{p} to use", "the {p}", "{p} of it"]
# {v} and {V} the verb, {n} the noun, {w} the values with their names
ASKS = {1: ["{V} the {n} {only}.", "{V} the {n} with the {w}.", "Please {v} a {n}: {w}", "Can you {v} the {n} {only}?", "{V} {n}, {w}",
            "I want to {v} a {n}. The {w}.", "Could you {v} my {n} with {w}?", "{V} the {n} for {only}, please."],
        2: ["{V} the {n} with {w}.", "Please {v} a {n}: {w}", "Can you {v} the {n}? {W}.", "{V} {n}, {w}", "I want to {v} a {n}. {W}.",
            "{V} my {n} ({w}).", "Could you {v} the {n} with {w}?", "I need to {v} a {n} with {w}."]}
PAIRS = ["{p} {v}", "{p} {v}", "{p} = {v}", "{p}: {v}", "{p} is {v}"]


def third(verb: str) -> str:
    if verb[-1] == "y" and len(verb) > 1 and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z")) else "s")


def name_of(rng: random.Random, verb: str, noun: str) -> str:
    kind = rng.random()
    if kind < 0.5:
        return f"{verb}_{noun}"
    if kind < 0.7:
        return verb + noun.capitalize()
    return rng.choice((f"{noun}_{verb}", f"{verb}-{noun}", f"{new_word(rng)}_{verb}_{noun}", f"{noun}{verb.capitalize()}",
                       f"{verb}_{noun}_v{rng.randint(1, 9)}", f"{new_word(rng)}.{verb}_{noun}"))


def spoken_list(rng: random.Random, pairs: list) -> str:
    if len(pairs) == 1:
        return pairs[0]
    if rng.random() < 0.5:
        return ", ".join(pairs)
    return ", ".join(pairs[:-1]) + " and " + pairs[-1]


def text_value(rng: random.Random) -> str:
    kind = rng.random()
    return new_word(rng) if kind < 0.3 else new_name(rng) if kind < 0.45 else code(rng) if kind < 0.65 else any_word(rng)


def open_result(rng: random.Random) -> tuple:
    """Result and the answer that uses it."""
    if rng.random() < 0.25:
        return {rng.choice(("ok", "done", "success")): True}, "That is done."
    fields = distinct(rng, rng.choice((1, 1, 2)), lambda r: r.choice(STRINGS + NUMBERS) if r.random() < 0.7 else new_word(r))
    values = [text_value(rng) if field in STRINGS or rng.random() < 0.3 else rng.randint(1, 9999) for field in fields]
    return dict(zip(fields, values)), "The " + " and the ".join(f"{f} is {v}" for f, v in zip(fields, values)) + "."


def open_tool(rng: random.Random, near: list) -> tuple:
    """name, topic "verb noun", description, {parameter: (type, description)}, request."""
    verb = rng.choice(VERBS) if rng.random() < 0.75 else new_word(rng)
    noun = rng.choice(NOUNS + THINGS) if rng.random() < 0.6 else new_word(rng)
    if near:
        other = rng.choice(near).split(" ")
        verb, noun = (other[0], noun) if rng.random() < 0.5 else (verb, other[1])
    names = distinct(rng, rng.choice((1, 1, 2, 2, 3)), lambda r: r.choice(STRINGS + NUMBERS) if r.random() < 0.75 else new_word(r))
    words = {"v": verb, "V": verb.capitalize(), "s": third(verb), "S": third(verb).capitalize(), "n": noun}
    description = rng.choice(DESCRIPTIONS).format(**words)
    kinds = {p: "integer" if p in NUMBERS or (p not in STRINGS and rng.random() < 0.4) else "string" for p in names}
    parameters = {p: (kind, rng.choice(MEANINGS).format(p=p, n=noun)) for p, kind in kinds.items()}

    def request(rng: random.Random) -> tuple:
        values = {p: rng.randint(1, 9999) if kind == "integer" else text_value(rng) for p, kind in kinds.items()}
        said = list(values.items())
        if rng.random() < 0.3:
            rng.shuffle(said)
        style = rng.choice(PAIRS)
        pairs = spoken_list(rng, [style.format(p=p, v=v) for p, v in said])
        asked = rng.choice(ASKS[min(len(said), 2)]).format(**words, w=pairs, W="The " + pairs, only=said[0][1])
        result, answer = open_result(rng)
        return asked, values, json.dumps(result, ensure_ascii=False), answer

    return name_of(rng, verb, noun), f"{verb} {noun}", description, parameters, request
