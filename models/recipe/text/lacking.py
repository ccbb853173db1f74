"""Requests that leave out what a function requires, the question for it, and the reply that gives it.

    Send an email to Anna      I need the subject and the body for that.      The subject is Hello, the body is See you
"""

import random
import re

from .made_up import spoken_list
from .results import spoken
from .words import KEPT, Asked, key_of

# What hangs on a value and says nothing without it
LOOSE = re.compile(r"""([\s.,:(#"'=?-]|\b(with|to|for|the|a|an|in|into|at|on|of|by|from|is|its|and|called|titled|named|about|it|saying|my|The)\b)+$""")
STARTS = ["{}", "{}, please", "I want to {}", "I need to {}", "Can you {}", "Please {}", "Could you {} for me"]
REPLIES = ["{}", "{}.", "OK, {}", "Here you are: {}", "Sure: {}", "{}, please."]
PAIRS = ["{p} {v}", "{p}: {v}", "{p} is {v}", "the {p} is {v}", "{p} = {v}", "the {p}: {v}"]
CUT_SHARE = 0.75


def in_words(name: str) -> str:
    return name.replace("_", " ")


def question(names: list) -> str:
    said = [f"the {in_words(name)}" for name in names]
    return "I need " + ", ".join(said[:-1]) + (" and " if len(said) > 1 else "") + said[-1] + " for that."


def places(asked: str, values: dict) -> dict:
    """Where each value begins and ends; nothing where one is not said exactly once."""
    found = {}
    for name, value in values.items():
        at = [match.span() for match in re.finditer(rf"(?<!\w){re.escape(str(value))}(?!\w)", asked)]
        if len(at) != 1:
            return {}
        found[name] = at[0]
    return found


def begun(rng: random.Random, asked: str, topic: str, values: dict, required: list) -> tuple | None:
    """A request up to one of its values, or before the first, and the names of what it then says; it must still name its thing."""
    at = sorted((span, name) for name, span in places(asked, values).items())
    kept = rng.randrange(len(at)) if at else 0
    said = [name for _, name in at[:kept]]
    if not at or any(name not in required for name in said) or not set(required) - set(said):
        return None
    text = asked[:at[kept - 1][0][1]] if kept else LOOSE.sub("", asked[:at[0][0][0]])
    if not kept:
        name = at[0][1]
        text = LOOSE.sub("", text.removesuffix(name).removesuffix(in_words(name)))
    if kept and asked[len(text):len(text) + 1] in ("'", '"'):
        text += asked[len(text)]
    text += ")" * (text.count("(") - text.count(")"))
    beyond = text
    for name in said:
        beyond = beyond.replace(str(values[name]), " ")
    return (text, said) if topic.split(" ")[-1] in beyond.lower() else None


def stated(rng: random.Random, topic: str, values: dict, required: list) -> tuple:
    """The topic itself, with some values and their names."""
    said = rng.sample(required, rng.randrange(len(required)))
    verb, _, thing = topic.partition(" ")
    article = rng.choice(("the ", "the ", "my ", "", "an " if thing[0] in "aeiou" else "a "))
    text = rng.choice(STARTS).format(f"{verb} {article}{thing}")
    style = rng.choice(PAIRS)
    with_them = spoken_list(rng, [style.format(p=in_words(name), v=spoken(values[name])) for name in said]) if said else ""
    text += rng.choice((" with {}", ": {}", ", {}", " ({})")).format(with_them) if said else ""
    return text[0].upper() + text[1:], said


def lacking(rng: random.Random, asked: str, topic: str, arguments: dict, schema: dict) -> tuple:
    """What is asked with something left out, the arguments of the call after it, the question for what is missing, and what is replied.

    Both turns are held out together, by what both say."""
    required = [name for name in schema["properties"] if name in schema["required"]]
    needed = {name: arguments[name] for name in required}
    text, said = (rng.random() < CUT_SHARE and begun(rng, asked, topic, arguments, required)) or stated(rng, topic, needed, required)
    missing = [name for name in required if name not in said]
    style = rng.choice(PAIRS)
    reply = spoken(needed[missing[0]])
    if len(missing) > 1 or rng.random() > 0.6 or key_of(reply) in KEPT:
        reply = rng.choice(REPLIES).format(spoken_list(rng, [style.format(p=in_words(name), v=spoken(needed[name])) for name in missing]))
    core = f"{text} {reply}"
    return Asked(text + rng.choice(("", ".", "?" if text.startswith(("Can", "Could")) else ".")), core), needed, \
        question(missing), Asked(reply, core)
