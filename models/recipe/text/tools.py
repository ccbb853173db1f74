"""Choosing a function from a list, calling it, and using its result.

Three of five functions are of the catalog, as other people name them; the others are made up (open_tools.py, plain_tools.py).
"""

import random
import re
from dataclasses import dataclass
from typing import Callable

from . import catalog
from .catalog import CATALOG, GROUPS
from .chat import Conversation, Turn
from .identity import greeting_turns
from .lacking import lacking
from .open_tools import open_tool, topics_like
from .outside import outside
from .plain_tools import plain_tool
from .results import almost, answer_to, open_result, written
from .values import draw_value
from .words import Asked

ASIDES = ["", "", "", "", "", "", "", "", "Please. ", "Hello! ", "Hi, ", "Could you do this: ", "A task for you. ", "Now: "]
NOTHING_FITS = "I have no function for that."
CATALOG_SHARE, OWN_RESULTS, ALMOST_RESULTS, FOLLOW_SHARE = 0.6, 0.58, 0.07, 0.4
OFFERED = (1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7, 8, 10, 12)  # functions of a list
MANY = (6, 7, 8, 9, 10, 11, 12, 12)
PLAIN_SHARE, LACKING_SHARE, BOTH_SHARE, SHORT_SHARE = 0.3, 0.05, 0.15, 0.2
MADE_UP_SHARE = 0.35  # of practice that has a made-up function: conversations that call no others
KINDS = ("catalog", "made-up", "none fits", "lacking")
# What a function of the catalog may be for, if it is there, is not asked for as something that no function does.
SERVED = re.compile(r"""hotel|news|what time|weather|remind|translat|recipe|trip|order|book|flight|restaurant|music|price|cost|capital|
population|currency|picture|summar|search|where|synonym|remember|program|record|temperature|travel|get to|\b(song|alarm|call|mail|find|team|
won|buy|play|draw|paint|mean|define|code|install|fix|cook|time|ill|word|rent|photo|clean|light|lock|save|open|charge|fly|job|file|
password|area|eat|weigh|print|scan|post|share|rate)\b""".replace("\n", ""), re.IGNORECASE)


@dataclass
class Tool:
    name: str
    topic: str  # what it does in one form; two tools of one topic are not told apart
    schema: dict
    request: Callable  # what a user says, the topic in these words, the arguments, the result, the answer that uses it
    made_up: bool
    follow: Callable | None = None  # request() for "and ...?" after it
    short: Callable | None = None  # request() by its noun alone, where no other function has that
    both: Callable | None = None  # request() for two values at once: of arguments, results and answers two

    @property
    def parameters(self) -> dict:
        return self.schema["function"]["parameters"]


def catalog_tool(rng: random.Random, group: str) -> Tool:
    f = rng.choice(GROUPS[group] if group else CATALOG)
    name, shown, names, choices, optional = catalog.shown_schema(rng, f)

    def answered(asked: str, arguments: dict, values: dict) -> tuple:
        fields = {name: draw_value(rng, kind) for name, kind in f.results.items()}
        kind = rng.random()
        near = ALMOST_RESULTS * (2 if rng.part == "train" else 1)
        found = fields if kind < OWN_RESULTS else almost(rng, fields) if kind < OWN_RESULTS + near else open_result(rng)
        if isinstance(found, dict) and list(found) == list(fields):  # the same fields always give the same answer
            return asked, f.topic, arguments, fields, catalog.answer(f, values, fields)
        return asked, f.topic, arguments, found, answer_to(found)

    def both(rng: random.Random) -> tuple:
        asked, arguments, values = catalog.both(rng, f, names)
        results, answers = zip(*(answered(asked, *pair)[3:] for pair in zip(arguments, values)))
        return asked, f.topic, arguments, list(results), (" " if answers[0][-1] == "." else "\n").join(answers)

    follow = catalog.can_follow(f)
    return Tool(name, f.topic, shown, lambda rng: answered(*catalog.ask(rng, f, names, choices, optional)), False,
                (lambda rng: answered(*catalog.follow(rng, f, names))) if follow else None, None, both if follow else None)


def any_tool(rng: random.Random, near: list, group: str) -> Tool:
    """`near`: tools with whose topics a made-up one may share half, so that the other half must be read."""
    if rng.random() < CATALOG_SHARE:
        return catalog_tool(rng, group)
    name, topic, shown, request, follow, short = \
        plain_tool(rng) if rng.random() < PLAIN_SHARE else open_tool(rng, [tool.topic for tool in near if tool.made_up])
    return Tool(name, topic, shown, request, True, follow, short)


def several(rng: random.Random, count: int, taken: list) -> list:
    """Tools of different names and topics, none of a topic in `taken`, however it is said; often of one field of the catalog."""
    found: list = []
    group = rng.choice(list(GROUPS)) if rng.random() < 0.5 else ""
    while len(found) < count:
        others = taken + found
        tool = any_tool(rng, others if rng.random() < 0.4 else [], group if rng.random() < 0.8 else "")
        like = topics_like(tool.topic) if tool.made_up else [tool.topic]
        if all(other.topic not in like and other.name != tool.name for other in others):
            found.append(tool)
    return found


def offered_tools(rng: random.Random, counts: tuple = OFFERED) -> list:
    return several(rng, rng.choice(counts), [])


def foreign_request(rng: random.Random) -> str:
    """What no function of any list does."""
    while True:
        text = outside(rng, tool_like=False)
        if not SERVED.search(text):
            return text


def alone(tool: Tool, offered: list) -> bool:
    """Whether no other function is about its thing."""
    noun = tool.topic.split(" ")[-1]
    return not any(other is not tool and noun in other.topic.split(" ") for other in offered)


def needs(tool: Tool) -> str:
    """What a call must give, and of what kind: else two values without names are given to each other's parameters."""
    kinds = {"integer": " (number)", "number": " (number)", "boolean": " (true or false)"}
    properties = tool.parameters["properties"]
    said = [name + kinds.get(properties[name]["type"], "") for name in properties if name in tool.parameters["required"]]
    return f" Needs {', '.join(said)}." if said else ""


def looked_through(offered: list, chosen: Tool | None) -> str:
    """Name by name until one fits: which name stands before a description that fits is hard to see at once."""
    names = [tool.name for tool in offered]
    if chosen is None:
        return "".join(f"{name}: no. " for name in names)
    return "".join(f"{name}: no. " for name in names[:names.index(chosen.name)]) + f"{chosen.name}: yes.{needs(chosen)}"


def tools(rng: random.Random, unfit: float = 0.2, practice: bool = False, counts: tuple = OFFERED, lacks_share: float = LACKING_SHARE,
          made_up_share: float = MADE_UP_SHARE) -> Conversation:
    """One or two requests with calls, results and answers; the share `unfit` of them fits no function, and `lacks_share` of the first
    ones (twice that in practice) leave out what the function requires. Practice has more requests for one list, which is most of the text,
    and more for functions that are made up. `counts`: of the functions of a list, to draw from.

    What is wanted is said first, thinking or not: in one form whatever the request's wording and the functions' names,
    it is then found by going through them name by name."""
    offered = offered_tools(rng, counts)
    thinking = rng.random() < 0.65
    turns: list = []
    kind = "none fits"
    before: Tool | None = None  # the tool of the last call, if that had one argument
    dense = practice and rng.random() < 0.5
    made_up = [tool for tool in offered if tool.made_up] if practice and rng.random() < made_up_share else []
    for _ in range(rng.choice((2, 3, 3, 4)) + len(offered) // 4 if dense else rng.choice((1, 1, 1, 2))):
        fits, elsewhere = rng.random() >= unfit, rng.random() < 0.35
        again = before is not None and before.follow is not None and rng.random() < FOLLOW_SHARE
        tool = before if again else rng.choice(made_up or offered) if fits else several(rng, 1, offered)[0]
        fits = fits or again
        twice = fits and not again and tool.both is not None and rng.random() < BOTH_SHARE
        short = fits and not again and tool.short is not None and rng.random() < SHORT_SHARE and alone(tool, offered)
        lacks = fits and not twice and not short and not turns and rng.random() < lacks_share * (2 if practice else 1) and bool(tool.parameters["required"])

        def ask() -> tuple:
            if again:
                return tool.follow(rng)
            if not fits and elsewhere:
                return foreign_request(rng), None, None, None, None
            asked, topic, arguments, result, answer = (tool.both if twice else tool.short if short else tool.request)(rng)
            asked, arguments, *back = lacking(rng, asked, topic, arguments, tool.parameters) if lacks else (asked, arguments)
            return Asked(rng.choice(ASIDES) + asked, getattr(asked, "core", asked)), topic, arguments, result, answer, *back

        asked, topic, arguments, result, answer, *back = rng.user(ask)
        turns.append(Turn("user", asked))
        wanted = f"{topic}. {looked_through(offered, tool if fits else None)}"
        if twice:
            wanted += " Two calls."
        thought, said = (f"Wanted: {wanted}", f"You want: {wanted}") if answer else ("", "")
        if fits:
            before = tool if twice or len(arguments) == 1 else None
            kind = "lacking" if lacks or kind == "lacking" else "made-up" if tool.made_up or kind == "made-up" else "catalog"
            if lacks:
                question, reply = back
                turns += [Turn("assistant", ("" if thinking else f"{said} ") + question, f"{thought} Something is missing."), Turn("user", reply)]
            calls, results = (arguments, result) if twice else ([arguments], [result])
            turns += [Turn("assistant", "" if thinking else said, thought, [(tool.name, values) for values in calls]),
                      *(Turn("tool", written(found)) for found in results), Turn("assistant", answer, "Use the result.")]
        else:
            turns.append(Turn("assistant", ("" if thinking else said) + NOTHING_FITS, f"{thought}No function fits."))
    if rng.random() < 0.06:
        turns += greeting_turns(rng)
    return Conversation("tools", turns, tools=[t.schema for t in offered], thinking=thinking, kind=kind, dense=dense)


def by_kind(right: list, conversations: list) -> dict:
    """Right of all, by what was called: a function of the catalog, a made-up one, none because none fits, or one after asking back."""
    kinds = [conversation.kind for conversation in conversations]
    return {kind: [sum(r for r, k in zip(right, kinds) if k == kind), kinds.count(kind)] for kind in KINDS}
