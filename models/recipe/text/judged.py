"""Hand-written tests whose answers are judged by what matters: asked_tools.tsv (the call alone, functions in asked_tools.jsonl) and
asked_other.tsv (the end of the answer, or its JSON). The first turn of each is never drawn (words.KEPT).

    asked_tools.tsv: request, functions that are offered, the calls in JSON ([] for none; a list of values where several are right;
                     "?" after what may be left out), then perhaps what comes next: a result, the answer to it, another request, its calls
    asked_other.tsv: request, answer (several, separated by " ~ "), then perhaps another request and its answer
"""

import json
import re
from pathlib import Path

from .chat import Conversation, Turn
from .words import hand_made

JUDGED = ("asked_tools", "asked_other")
LINES = (Path(__file__).parent / "asked_tools.jsonl").read_text().splitlines()
SCHEMAS = {function["name"]: {"type": "function", "function": function} for function in map(json.loads, LINES)}
CALL = re.compile(r"<function=([^>]*)>(.*?)</function>", re.DOTALL)
ARGUMENT = re.compile(r"<parameter=([^>]*)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _first(value: object) -> object:
    return value[0] if isinstance(value, list) else value


def _made(calls: list) -> list:
    """As a model would make them."""
    return [(call["name"], {name: _first(value) for name, value in call["arguments"].items() if name[-1] != "?"}) for call in calls]


def of_tools(row: list) -> tuple:
    """The conversation up to the last request, and the calls that it asks for."""
    turns = [Turn("user", row[0])]
    for calls, result, answer, request in zip(row[2::4], row[3::4], row[4::4], row[5::4]):
        turns += [Turn("assistant", calls=_made(json.loads(calls))), Turn("tool", result), Turn("assistant", answer), Turn("user", request)]
    tools = [SCHEMAS[name] for name in row[1].split(",")]
    return Conversation("asked_tools", turns, tools=tools, thinking=True), json.loads(row[-1])


def of_other(row: list) -> tuple:
    turns = [Turn("assistant" if i % 2 else "user", text) for i, text in enumerate(row[:-1])]
    return Conversation("asked_other", turns, thinking=True), row[-1].split(" ~ ")


def judged(name: str) -> list:
    """(conversation that ends with a request, what is right)."""
    return [(of_tools if name == "asked_tools" else of_other)(row) for row in hand_made(f"{name}.tsv")]


def _same(said: str, wanted: object) -> bool:
    options = wanted if isinstance(wanted, list) else [wanted]
    return said.strip(" .").casefold() in [str(option if not isinstance(option, bool) else str(option).lower()).casefold() for option in options]


def _called(calls: list, wanted: list) -> bool:
    if [name for name, _ in calls] != [call["name"] for call in wanted]:
        return False
    for (_, found), call in zip(calls, wanted):
        known = {name.rstrip("?"): value for name, value in call["arguments"].items()}
        needed = [name for name in call["arguments"] if name[-1] != "?"]
        if not all(name in found for name in needed) or not all(name in known and _same(value, known[name]) for name, value in found.items()):
            return False
    return True


def is_right(name: str, said: str, wanted: list) -> bool:
    """`said`: what the model wrote, its thought perhaps before it."""
    said = said.rpartition("</think>")[2].strip()
    if name == "asked_tools":
        return _called([(function, dict(ARGUMENT.findall(body))) for function, body in CALL.findall(said)], wanted)
    if wanted[0].startswith("{"):
        try:
            return json.loads(said[said.index("{"):]) in map(json.loads, wanted)
        except ValueError:
            return False
    return any(said.endswith(answer) if answer[-1] == "." else said.rpartition("\n")[2] == answer for answer in wanted)
