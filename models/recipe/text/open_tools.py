"""Functions that are made up: name, description and parameters are new, so choosing and calling means reading them."""

import json
import random
import re

from .catalog import CATALOG
from .words import EVERYDAY, NOUNS, THINGS, any_word, code, distinct, new_name, new_word

VERBS = """open lock unlock pause restart list measure clean paint move copy rename sort print scan cancel rent water feed charge park
wash pack ship weigh mix heat cool dim archive publish merge split label block build install store load invite assign approve
reject share hide rotate refill polish fold inspect register export import track join mark tune empty fill scale deploy send
resize restore upgrade ping compile monitor sync mute zoom enable disable schedule validate""".split()
STRINGS = "id name place owner user target label mode color path group status kind tag source shelf zone code title type".split()
NUMBERS = "level amount count size speed limit weight price width height seconds hours days pages priority volume year distance".split()
RESULTS = """temperature condition price total count status id result name value title message url time date currency humidity wind
distance duration rate balance score summary location""".split()
ERRORS = ["not found", "{w} not found", "permission denied", "timeout", "no connection", "invalid {w}", "internal error", "{w} does not exist",
          "too many requests", "access denied", "service unavailable", "no such {w}", "quota exceeded", "{w} is locked"]
# One deed in several words: a request may say another than the function. No two groups share a word.
ALIKE = [group.split() for group in ("delete remove erase", "create add make", "show display", "get fetch", "find search", "start launch",
                                     "stop halt", "update change edit", "repair fix", "reserve book", "buy purchase", "close shut")]
SAME = {verb: group for group in ALIKE for verb in group}
DESCRIPTIONS = ["{S} a {n}", "{S} the {n}.", "{V} a {n}", "This function {s} a {n}", "Use it to {v} a {n}.", "To {v} the {n} of a user"]
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
PAIRS = ["{p} {v}", "{p} {v}", "{p} = {v}", "{p}: {v}", "{p} is {v}"]


# What the catalog's functions are about is left to them: "open ticket" is one deed there.
TAKEN = {word for f in CATALOG for name in [f.topic, *f.names] for word in re.findall("[a-z]+", re.sub("([A-Z])", r" \1", name).lower())}
FREE_NOUNS = [noun for noun in NOUNS + THINGS if noun not in TAKEN]
FREE_EVERYDAY = [noun for noun in EVERYDAY if noun not in TAKEN]


def topics_like(topic: str) -> list:
    """The topic said with each verb that means the same."""
    verb, noun = topic.split(" ")
    return [f"{other} {noun}" for other in SAME.get(verb, [verb])]


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
    return rng.choice((f"{noun}_{verb}", f"{verb}-{noun}", f"{rng.choice(EVERYDAY)}_{verb}_{noun}", f"{noun}{verb.capitalize()}",
                       f"{verb}_{noun}_v{rng.randint(1, 9)}", f"{rng.choice(EVERYDAY)}.{verb}_{noun}"))


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
    """Result as text and the answer that uses it, whatever the function."""
    kind = rng.random()
    if kind < 0.08:
        error = rng.choice(ERRORS).format(w=any_word(rng)) if rng.random() < 0.7 else f"{any_word(rng)} {any_word(rng)}"
        return json.dumps({"error": error}, ensure_ascii=False), f"The function failed: {error}."
    if kind < 0.15:
        text = " ".join(text_value(rng) for _ in range(rng.randint(1, 5)))
        return text, f"The result: {text}"
    if kind < 0.3:
        done = rng.random() < 0.85
        return json.dumps({rng.choice(("ok", "done", "success")): done}), "That is done." if done else "That did not work."
    fields = distinct(rng, rng.choice((1, 1, 2, 2, 3)), lambda r: r.choice(RESULTS) if r.random() < 0.4 else parameter(r))
    values = [[any_word(rng) for _ in range(rng.randint(1, 4))] if rng.random() < 0.1 else
              text_value(rng) if field in STRINGS or rng.random() < 0.4 else rng.randint(1, 9999) for field in fields]
    spoken = [f"{field} is {', '.join(value) if isinstance(value, list) else value}" for field, value in zip(fields, values)]
    return json.dumps(dict(zip(fields, values)), ensure_ascii=False), "The " + " and the ".join(spoken) + "."


def open_tool(rng: random.Random, near: list) -> tuple:
    """name, topic "verb noun", description, {parameter: (type, description)}, request.

    A request is given as (what is asked, the topic in its words, arguments, result, answer)."""
    verb = rng.choice(VERBS) if rng.random() < 0.6 else rng.choice(rng.choice(ALIKE)) if rng.random() < 0.92 else new_word(rng)
    kind = rng.random()
    noun = rng.choice(FREE_NOUNS) if kind < 0.45 else rng.choice(FREE_EVERYDAY) if kind < 0.85 else new_word(rng)
    if near:
        other = rng.choice(near).split(" ")
        verb, noun = (other[0], noun) if rng.random() < 0.5 else (verb, other[1])
    names = distinct(rng, rng.choice((1, 1, 2, 2, 3)), parameter)
    words = {"v": verb, "V": verb.capitalize(), "s": third(verb), "S": third(verb).capitalize(), "n": noun, "N": noun.capitalize()}
    description = rng.choice(DESCRIPTIONS).format(**words)
    kinds = {p: "integer" if p in NUMBERS or (p not in STRINGS and rng.random() < 0.4) else "string" for p in names}
    alike = SAME.get(verb, [verb])
    parameters = {p: (kind, rng.choice(MEANINGS).format(p=p, n=noun)) for p, kind in kinds.items()}

    def request(rng: random.Random) -> tuple:
        values = {p: rng.randint(1, 9999) if kind == "integer" else text_value(rng) for p, kind in kinds.items()}
        said = list(values.items())
        if rng.random() < 0.3:
            rng.shuffle(said)
        style = rng.choice(PAIRS)
        spaces = rng.random() < 0.5
        pairs = spoken_list(rng, [style.format(p=p.replace("_", " ") if spaces else p, v=v) for p, v in said])
        other = rng.choice(alike) if rng.random() < 0.4 else verb
        asks, named = ASKS[min(len(said), 2)], words | {"v": other, "V": other.capitalize()}
        if sorted(kinds.values()) == ["integer", "string"] and rng.random() < 0.4:
            asks = PLAIN_ASKS
            named |= {"text": next(v for p, v in said if kinds[p] == "string"), "number": next(v for p, v in said if kinds[p] == "integer")}
        asked = rng.choice(asks).format(**named, w=pairs, W="The " + pairs, only=said[0][1])
        return asked, f"{other} {noun}", values, *open_result(rng)

    return name_of(rng, verb, noun), f"{verb} {noun}", description, parameters, request
