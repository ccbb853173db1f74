"""Functions of plain.txt: asked for as people do, the values without the parameters' names.

    way: names in a schema; kind of value; descriptions; ways to say it, "{}" the value; how a sentence after the request says it
    = verbs: things: ways, "?" before what is not required

"Open a bug titled Blank page with priority high". A value whose way is "{}" alone stands right behind the thing. No two ways of a line
begin alike, so each value has one place. Which parameter a value is for is read from the schema's names and descriptions.
"""

import random
from dataclasses import dataclass
from pathlib import Path

from .made_up import text_value
from .open_tools import TAILS, TAKEN, described, name_of, schema
from .results import answer_to, open_result
from .values import NUMBERS, draw_value
from .words import SAME, Dice

STARTS = ["{V} {a} {n}", "{V} {a} {n}", "{V} {n}", "Please {v} {a} {n}", "Can you {v} {a} {n}", "I want to {v} {a} {n}", "{v} {a} {n}",
          "Could you {v} {a} {n}", "I need to {v} {a} {n}", "We have to {v} {a} {n}", "I'd like to {v} {a} {n}"]
# Without a verb: it is read from the function
SHORT = ["{N}", "New {n}", "I need {a} {n}", "We need {a} {n}", "There is {a} {n}", "{a} {n}, please:", "Can you see to {a} {n}",
         "It is about {a} {n}",
         "Another {n}", "{n}", "Next: {a} {n}", "What about {a} {n}", "Please see to {a} {n}"]
NO_END = ("title", "text", "topic", "problem")  # after these nothing more is said, for it would be taken for theirs
LEFT_OUT, OTHER_WORD, SHUFFLED, LATER = 0.5, 0.3, 0.25, 0.35


@dataclass
class Way:
    names: list
    kind: str
    about: list
    says: list
    after: list


@dataclass
class Deed:
    verbs: list
    things: list
    ways: list  # (way, whether it is required)


def read_plain(path: Path) -> list:
    ways: dict = {}
    deeds: list = []
    for line in path.read_text().splitlines():
        if line.startswith("= "):
            verbs, things, said = line[2:].split(": ")
            deeds.append(Deed(verbs.split(), things.split(), [(ways[name.lstrip("?")], name[0] != "?") for name in said.split()]))
            says = [text for way, _ in deeds[-1].ways for text in way.says]
            assert len(set(says)) == len(says), f"{line}: two values are said alike"
        elif line and line[0] != "#":
            name, rest = line.split(": ", 1)
            names, kind, about, says, *after = rest.split("; ")
            ways[name] = Way(names.split(), kind, about.split(" | "), says.split(" | "), after[0].split(" | ") if after else [])
    for deed in deeds:  # what the catalog's functions are about is left to them
        assert not TAKEN & set(deed.things), f"the catalog has {TAKEN & set(deed.things)}"
    return deeds


DEEDS = read_plain(Path(__file__).parent / "plain.txt")


def value_of(rng: random.Random, entry: dict, way: Way) -> object:
    if "enum" in entry:
        return rng.choice(entry["enum"])
    return text_value(rng) if way.kind == "word" else draw_value(rng, way.kind)


def sentence_after(rng: random.Random, way: Way, value: object) -> str:
    """A value in a sentence after the request; it keeps its letters, but one of a few that are known may begin with a capital."""
    text = rng.choice(way.after)
    said = text.format(value)
    return said if text[0] == "{" and "/" not in way.kind else said[0].upper() + said[1:]


def asked_for(rng: random.Random, words: dict, said: list, tails: list, start: str = "") -> str:
    """`said`: (way, value); what stands right behind the thing comes first, what is open at its end last. `tails`: what may be said at the end;
    `start` instead of one that says the verb."""
    later = [pair for pair in said[1:] if pair[0].after and rng.random() < LATER]
    parts = [(rng.choice(way.says), way.kind, value) for way, value in said if (way, value) not in later]
    parts = [("{}" if (text, kind) == ("on {}", "date") and value[0].islower() else text, kind, value) for text, kind, value in parts]
    if rng.random() < SHUFFLED:
        rng.shuffle(parts)
    parts.sort(key=lambda part: 2 if part[1] in NO_END and part[0][0] == ":" else part[0] != "{}" or part[1] == "date")
    direct = parts and parts[0][0] == "{}" and parts[0][1] != "date"
    article = "the" if direct or rng.random() < 0.4 else "an" if words["n"][0] in "aeiou" else "a"
    start = (start or rng.choice(STARTS)).format(**words, a=article)
    asked = start + "".join(("" if text[0] == ":" else " ") + text.format(value) for text, _, value in parts)
    if later:
        return f"{asked}. " + rng.choice((". ", ", ")).join(sentence_after(rng, *pair) for pair in later) + "."
    if rng.random() < 0.15 and parts and parts[-1][1] not in NO_END:
        asked += rng.choice(tails)
    return asked + rng.choice(("", ".", "?" if start.startswith(("Can", "Could")) else "."))


def plain_tool(rng: Dice) -> tuple:
    """As open_tool()."""
    deed = DEEDS[0]

    def draw() -> tuple:
        nonlocal deed
        deed = rng.choice(DEEDS)
        return rng.choice(deed.verbs), rng.choice(deed.things)

    verb, noun = rng.deed(draw)
    while True:
        names = {rng.choice(way.names): (way, required) for way, required in deed.ways}
        if len(names) == len(deed.ways):
            break
    shown = rng.sample(list(names), len(names)) if rng.random() < 0.3 else list(names)
    entries = {}
    for name in shown:
        way = names[name][0]
        entries[name] = {"type": "integer" if way.kind in NUMBERS else "string", "description": rng.choice(way.about).format(n=noun)}
        if "/" in way.kind:
            entries[name]["enum"] = way.kind.split("/")
    required = [name for name in shown if names[name][1]]
    name = name_of(rng, verb, noun)
    tails = TAILS[:3] if any(way.kind in ("date", "time", "person", "username") for way, _ in deed.ways) else TAILS  # "today", "for me"

    def short(rng: random.Random) -> tuple:
        return request(rng, rng.choice(SHORT))

    def request(rng: random.Random, start: str = "") -> tuple:
        other = rng.choice(SAME.get(verb, [verb])) if rng.random() < OTHER_WORD else verb
        values: dict = {}
        while len(set(map(str, values.values()))) < len(values) or not values:
            values = {name: value_of(rng, entries[name], way) for name, (way, needed) in names.items() if needed or rng.random() > LEFT_OUT}
        words = {"v": other, "V": other.capitalize(), "n": noun, "N": noun.capitalize()}
        asked = asked_for(rng, words, [(names[name][0], value) for name, value in values.items()], tails, start)
        result = open_result(rng)
        return asked, f"{verb if start else other} {noun}", {name: values[name] for name in shown if name in values}, result, answer_to(result)

    return name, f"{verb} {noun}", schema(name, described(rng, verb, noun), entries, required), request, None, short
