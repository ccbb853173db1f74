"""Functions that are made up: name, description and parameters are new, so choosing and calling means reading them."""

import random
import re

from .catalog import CATALOG, DOERS, FOLLOWS, FOLLOWS_NAMED, unlike
from .made_up import NUMBERS, STRINGS, number_value, parameter, spoken_list, text_value
from .results import answer_to, open_result, spoken
from .values import phrase
from .words import ALIKE, EVERYDAY, NOUNS, SAME, THINGS, Dice, any_word, distinct, new_word

VERBS = """open lock unlock pause restart list measure clean paint move copy rename sort print scan cancel rent water feed charge park
wash pack ship weigh mix heat cool dim archive publish merge split label block build install store load invite assign approve
reject share hide rotate refill polish fold inspect register export import track join mark tune empty fill scale deploy send
resize restore upgrade ping compile monitor sync mute zoom enable disable schedule validate""".split()
DESCRIPTIONS = ["{S} {a} {n}", "{S} the {n}.", "{V} {a} {n}", "This function {s} {a} {n}", "Use it to {v} {a} {n}.", "To {v} the {n} of a user"]
# Of a thing that belongs to another: {o} that, {p} the first parameter
OF_ANOTHER = ["{S} the {n} of {ao} {o}", "{V} the {n} of {ao} {o}", "{V} {a} {n} in the {o}", "{V} {a} {n} in the {o} by its {p}",
              "{S} {a} {n} of the {o}.",
              "{V} the {n} of the {o} for a user", "{V} {a} {n} for {ao} {o}", "{S} the {n} that {ao} {o} has"]
HOLDERS = NOUNS + THINGS + """room house hotel warehouse clinic patient school library team office garden farm factory
kitchen car ship plane museum""".split()
ANOTHER_SHARE, OPAQUE_SHARE = 0.35, 0.14
MEANINGS = ["the {p} of the {n}", "{p}", "which {p}", "{p} to use", "the {p}", "{p} of it"]
# {v} and {V} the verb, {n} the noun, {w} the values with their names
ASKS = {1: ["{V} the {n} {only}.", "{V} the {n} with the {w}.", "Please {v} a {n}: {w}", "Can you {v} the {n} {only}?", "{V} {n}, {w}",
            "I want to {v} a {n}. The {w}.", "Could you {v} my {n} with {w}?", "{V} the {n} for {only}, please."],
        2: ["{V} the {n} with {w}.", "Please {v} a {n}: {w}", "Can you {v} the {n}? {W}.", "{V} {n}, {w}", "I want to {v} a {n}. {W}.",
            "{V} my {n} ({w}).", "Could you {v} the {n} with {w}?", "I need to {v} a {n} with {w}."]}
# A text and a number, of which nobody needs to say which is which
PLAIN_ASKS = ["{V} the {n} {text} to {number}.", "{V} {n} {text}: {number}", "Please {v} {text}, a {n}, {number} times.",
              "{V} the {n} {text} by {number}.", "Can you {v} the {n} {text} with {number}?", "{V} {number} for the {n} {text}.",
              "{V} {text} to {number}, it is a {n}.", "With {number}, {v} the {n} {text}.", "I want to {v} {n} {text} to {number}.",
              "{N} {text}: {v} it to {number}."]
# Several values without their names, in the schema's order
UNNAMED_ASKS = ["{V} the {n} {w}.", "{V} {n}: {w}", "Please {v} a {n}, {w}", "Can you {v} the {n} with {w}?", "{N}: {v} it with {w}.",
                "I want to {v} a {n}: {w}", "{V} {w}, it is a {n}.", "{V} my {n} ({w})."]
# The deed's thing alone, with its values; the verb is read from the function
ASKED_SHORT = ["{N} {w}?", "{N} {w}, please.", "What about the {n} {w}?", "Do we have the {n} {w}?", "I need the {n} {w}.",
               "Any news on the {n} {w}?",
               "It is about the {n} {w}.", "The {n} {w}, please.", "Where is the {n} {w}?", "How is the {n} {w}?", "{w}: the {n}, please.", "{n} {w}",
               "Could you see to the {n} {w}?", "We want the {n} {w} done.", "Time for the {n}: {w}", "Take care of the {n}, {w}.", "{N}: {w}."]
TAILS = [" please", ", thanks", " if you can", ", please", " for me", " now", " right now", " today"]
LEFT_OUT = 0.65  # of what is not required
PHRASES = 0.08  # of texts
PAIRS = ["{p} {v}", "{p} {v}", "{p} = {v}", "{p}: {v}", "{p} is {v}"]


# What the catalog's functions are about is left to them: "open ticket" is one deed there.
TAKEN = {word for f in CATALOG for name in [f.topic, *f.names] for word in re.findall("[a-z]+", re.sub("([A-Z])", r" \1", name).lower())}
FREE_NOUNS = [noun for noun in NOUNS + THINGS if noun not in TAKEN]
FREE_EVERYDAY = [noun for noun in EVERYDAY if noun not in TAKEN]


def topics_like(topic: str) -> list:
    """The topic said with each verb that means the same."""
    verb, noun = topic.split(" ")
    return [f"{other} {noun}" for other in SAME.get(verb, [verb])]


def third(verb: str) -> str:
    if verb[-1] == "y" and len(verb) > 1 and verb[-2] not in "aeiou":
        return verb[:-1] + "ies"
    return verb + ("es" if verb.endswith(("s", "sh", "ch", "x", "z")) else "s")


def name_of(rng: random.Random, verb: str, noun: str, holder: str = "") -> str:
    """Mostly the deed's words; or the holder's or none of them, so that the description must be read."""
    if rng.random() < OPAQUE_SHARE:
        return unlike(rng, holder or noun)
    kind = rng.random()
    if holder and kind < 0.55:
        return rng.choice((f"{verb}_{holder}", f"{holder}_{verb}", f"{verb}_{holder}_{noun}", f"{holder}_{noun}", f"{verb}{holder.capitalize()}",
                           f"{rng.choice(SAME.get(verb, [verb]))}_{holder}", f"{rng.choice(DOERS)}_{holder}_{noun}"))
    kind = rng.random()
    if kind < 0.42:
        return f"{verb}_{noun}"
    if kind < 0.6:
        return verb + noun.capitalize()
    if kind < 0.7:
        return f"{rng.choice(EVERYDAY)}_{verb}_{noun}"
    return rng.choice((f"{noun}_{verb}", f"{verb}-{noun}", f"{rng.choice(EVERYDAY)}_{verb}_{noun}", f"{noun}{verb.capitalize()}",
                       f"{verb}_{noun}_v{rng.randint(1, 9)}", f"{rng.choice(EVERYDAY)}.{verb}_{noun}"))


def article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def described(rng: random.Random, verb: str, noun: str, holder: str = "", first: str = "") -> str:
    return rng.choice(OF_ANOTHER if holder else DESCRIPTIONS).format(
        v=verb, V=verb.capitalize(), s=third(verb), S=third(verb).capitalize(), n=noun, a=article(noun), o=holder, ao=holder and article(holder),
        p=first.replace("_", " "))


def schema(name: str, description: str, entries: dict, required: list) -> dict:
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {"type": "object", "properties": entries, "required": required}}}


def entry(rng: random.Random, name: str, noun: str, optional: bool) -> dict:
    """A parameter as a schema has it."""
    if optional and rng.random() < 0.15:
        return {"type": "boolean", "description": rng.choice(MEANINGS).format(p=name, n=noun)}
    kind = "integer" if name in NUMBERS or (name not in STRINGS and rng.random() < 0.4) else "string"
    found = {"type": kind, "description": rng.choice(MEANINGS).format(p=name, n=noun)}
    if kind == "string" and rng.random() < (0.4 if optional else 0.06):
        found["enum"] = distinct(rng, rng.choice((2, 2, 3)), any_word)
    return found


def value_of(rng: random.Random, entry: dict) -> object:
    if entry["type"] == "boolean":
        return rng.random() < 0.5
    if entry["type"] == "integer":
        return number_value(rng)
    return rng.choice(entry["enum"]) if "enum" in entry else phrase(rng, "title") if rng.random() < PHRASES else text_value(rng)


def quoted(value: object) -> str:
    """As it is said: several words in quotes, so that it is clear where they end."""
    return f'"{value}"' if " " in str(value) else spoken(value)


def given_values(rng: random.Random, entries: dict, required: list) -> dict:
    """In the schema's order; what is not required is mostly left out. No value is there twice."""
    while True:
        values = {p: value_of(rng, entry) for p, entry in entries.items() if p in required or rng.random() > LEFT_OUT}
        if len(set(map(str, values.values()))) == len(values):
            return values


def asked_for(rng: random.Random, words: dict, entries: dict, required: list, values: dict) -> str:
    """Values stand with their names, in any order; or without, in the schema's, when they are all or the required ones."""
    kinds = [entries[p]["type"] for p in values]
    unnamed = len(values) > 1 and len(values) in (len(required), len(entries)) and "boolean" not in kinds
    if unnamed and sorted(kinds) == ["integer", "string"] and rng.random() < 0.4:
        number, text = sorted(values.values(), key=lambda v: isinstance(v, str))
        return rng.choice(PLAIN_ASKS).format(**words, text=quoted(text), number=number)
    if unnamed and rng.random() < 0.25:
        return rng.choice(UNNAMED_ASKS).format(**words, w=spoken_list(rng, [quoted(value) for value in values.values()]))
    said = list(values.items())
    if rng.random() < 0.3:
        rng.shuffle(said)
    style, spaces = rng.choice(PAIRS), rng.random() < 0.5
    pairs = spoken_list(rng, [style.format(p=p.replace("_", " ") if spaces else p, v=quoted(v)) for p, v in said])
    asks = ASKS[2 if len(said) > 1 else 1]
    return rng.choice(asks).format(**words, w=pairs, W="The " + pairs, only=quoted(said[0][1]))


def deed(rng: random.Random, near: list) -> tuple:
    """A verb and a noun; one of them another deed's where there are such `near`."""
    verb = rng.choice(VERBS) if rng.random() < 0.6 else rng.choice(rng.choice(ALIKE)) if rng.random() < 0.92 else new_word(rng)
    kind = rng.random()
    noun = rng.choice(FREE_NOUNS) if kind < 0.45 else rng.choice(FREE_EVERYDAY) if kind < 0.85 else new_word(rng)
    if near:
        other = rng.choice(near).split(" ")
        return (other[0], noun) if rng.random() < 0.5 else (verb, other[1])
    return verb, noun


def open_tool(rng: Dice, near: list) -> tuple:
    """name, topic "verb noun", its schema, request, request for "and ...?" after it or None, request by the noun alone.

    A request is given as (what is asked, the topic in its words, arguments, result, answer)."""
    verb, noun = rng.deed(lambda: deed(rng, near))
    names = distinct(rng, rng.choice((1, 1, 2, 2, 2, 3, 3)), parameter)
    optional = set(rng.sample(names, rng.randint(1, len(names) - 1))) if len(names) > 1 and rng.random() < 0.45 else set()
    holder = rng.choice(HOLDERS) if rng.random() < ANOTHER_SHARE else ""
    words = {"v": verb, "V": verb.capitalize(), "n": noun, "N": noun.capitalize()}
    of_holder = [f"{noun} of the {holder}", f"{holder} {noun}", f"{noun} in the {holder}", noun]
    entries = {p: entry(rng, p, noun, p in optional) for p in names}
    required = [p for p in names if p not in optional]
    name = name_of(rng, verb, noun, holder)
    alike = SAME.get(verb, [verb])

    def request(rng: random.Random) -> tuple:
        values = given_values(rng, entries, required)
        other = rng.choice(alike) if rng.random() < 0.4 else verb
        named = {"n": (thing := rng.choice(of_holder)), "N": thing.capitalize()} if holder else {}
        asked = asked_for(rng, words | {"v": other, "V": other.capitalize()} | named, entries, required, values)
        if asked[-1] in ".?" and rng.random() < 0.1:
            asked = asked[:-1] + rng.choice(TAILS) + asked[-1]
        result = open_result(rng)
        return asked, f"{other} {noun}", values, result, answer_to(result)

    def follow(rng: random.Random) -> tuple:
        value = value_of(rng, entries[required[0]])
        result, n = open_result(rng), rng.choice((required[0].replace("_", " "), noun))
        asked = (rng.choice(FOLLOWS) if rng.random() < 0.6 else rng.choice(FOLLOWS_NAMED)).format(quoted(value), n=n)
        return asked, f"{verb} {noun}", {required[0]: value}, result, answer_to(result)

    def short(rng: random.Random) -> tuple:
        values = given_values(rng, entries, required)
        thing = rng.choice(of_holder) if holder else noun
        said = [quoted(v) if len(values) == 1 else rng.choice(PAIRS).format(p=p.replace("_", " "), v=quoted(v)) for p, v in values.items()]
        asked = rng.choice(ASKED_SHORT).format(n=thing, N=thing.capitalize(), w=spoken_list(rng, said))
        result = open_result(rng)
        return asked, f"{verb} {noun}", values, result, answer_to(result)

    return name, f"{verb} {noun}", schema(name, described(rng, verb, noun, holder, names[0]), entries, required), request, \
        follow if len(required) == 1 else None, short
