"""Reads catalog.txt: functions of everyday programs, as other people name them and ask for them.

    = topic: names that programs give it
    says: descriptions, separated by " | " as everything with spaces in it
    par: names; kind; description        ("?" before an optional one; the first name is the one that requests use)
    ask: requests with {parameters}; "=> name=value" gives what they say without the value
    out: result fields with their kinds; the answer

A kind is one of values.py, "boolean", or "a/b/c" of a closed set. A line "# shops" begins a field of functions that lie near each other.
A line "any:" is a parameter that any function may have and no request gives a value: an unknown unit is left out, not filled with a city.
"""

import random
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from string import Formatter

from .asked import casual
from .results import spoken
from .values import LISTS, MADE, NUMBERS, draw_value
from .words import EVERYDAY, NOUNS, Asked, any_word, distinct, new_word


@dataclass
class Parameter:
    names: list  # the first one is used in requests
    kind: str
    about: str
    optional: bool

    @property
    def choices(self) -> list:
        return self.kind.split("/") if "/" in self.kind else []


@dataclass
class Function:
    topic: str
    names: list
    group: str
    says: list = field(default_factory=list)
    parameters: list = field(default_factory=list)
    asks: list = field(default_factory=list)  # (template, {parameter: value without a word})
    results: dict = field(default_factory=dict)
    answer: str = ""

    @cached_property
    def short_asks(self) -> list:
        """The requests that leave out the most."""
        said = [len(named_in(template) | set(constants)) for template, constants in self.asks]
        return [ask for ask, count in zip(self.asks, said) if count == min(said)]


def named_in(template: str) -> set:
    return {name for _, name, _, _ in Formatter().parse(template) if name}


def _request(text: str) -> tuple:
    template, _, constants = text.partition(" => ")
    values = dict(pair.split("=") for pair in constants.split()) if constants else {}
    return template, {name: {"true": True, "false": False}.get(value, value) for name, value in values.items()}


def _parameter(rest: str) -> Parameter:
    names, value, about = rest.split("; ")
    return Parameter(names.lstrip("?").split(), value, about, names.startswith("?"))


def _checked(f: Function) -> Function:
    names = {p.names[0]: p for p in f.parameters}
    required = {name for name, p in names.items() if not p.optional}
    for template, constants in f.asks:
        said = named_in(template) | set(constants)
        assert said <= set(names), f"{f.topic}: {template} says {said - set(names)}, which it does not have"
        assert required <= said, f"{f.topic}: {template} leaves out {required - said}"
    for p in f.parameters:
        assert p.choices or p.kind in ("boolean", *NUMBERS, *MADE, *LISTS), f"{f.topic}: no kind {p.kind}"
    for kind in f.results.values():
        assert kind in (*NUMBERS, *MADE, *LISTS), f"{f.topic}: no kind {kind}"
    assert not set(f.results) & set(names), f"{f.topic}: a result has the name of a parameter"
    assert named_in(f.answer) <= required | set(f.results) and f.says and f.asks, f.topic
    return f


def read_catalog(path: Path) -> tuple:
    """The functions, and the parameters that any function may have."""
    functions: list = []
    spare: list = []
    group = ""
    for line in path.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "#":
            group = rest
        elif kind == "=":
            topic, names = rest.split(": ")
            functions.append(Function(topic, names.split(), group))
        elif kind == "says:":
            functions[-1].says = rest.split(" | ")
        elif kind == "par:":
            functions[-1].parameters.append(_parameter(rest))
        elif kind == "any:":
            spare.append(_parameter(rest))
        elif kind == "ask:":
            functions[-1].asks += [_request(text) for text in rest.split(" | ")]
        elif kind == "out:":
            fields, functions[-1].answer = rest.split("; ", 1)
            functions[-1].results = dict(pair.split("=") for pair in fields.split())
        else:
            assert not line, f"{path.name}: no such line: {line}"
    assert len({f.topic for f in functions}) == len(functions), "two functions of one topic"
    return [_checked(f) for f in functions], spare


CATALOG, SPARE = read_catalog(Path(__file__).parent / "catalog.txt")
GROUPS: dict = {}
for _function in CATALOG:
    GROUPS.setdefault(_function.group, []).append(_function)
QUOTED = ("text", "title", "query", "problem", "song", "movie", "event", "task")  # people may put these into quotes
FOLLOWS = ["And {}?", "And {}?", "What about {}?", "How about {}?", "And for {}?", "and {}", "The same for {}.", "Now for {}.", "Also {}, please.",
           "Then {}.", "then {}", "Next: {}", "{} too, please.", "{} as well.", "Now {}.", "Do the same for {}.", "OK, and {}?", "Same for {}"]
FOLLOWS_NAMED = ["Then {n} {}.", "then {n} {}", "And {n} {}?", "Now {n} {}.", "And the {n} {}?", "Same for {n} {}.", "What about the {n} {}?",
                 "Next, {n} {}"]
# What is not required, named in passing; {n} its name. A boolean said in one of these ways is true.
PASSING = {
    "limit": ["at most {v}", "no more than {v}", "only the first {v}", "limit {v}", "up to {v} of them", "max {v}", "not more than {v}, please"],
    "page": ["page {v}", "on page {v}"], "language": ["in {v}", "answer in {v}", "language {v}"], "format": ["as {v}", "in {v} format", "output {v}"],
    "priority": ["{v} priority", "with {v} priority", "priority {v}", "it has {v} priority"], "unit": ["in {v}", "unit {v}"], "scale": ["in {v}"],
    "units": ["{v} units", "in {v} units"], "mode": ["{v} mode", "in {v} mode"], "sort": ["sorted {v}", "in {v} order"], "detail": ["{v} details"],
    "timezone": ["time zone {v}"], "user": ["for user {v}", "as user {v}"], "tags": ["tag {v}", "tagged {v}"], "source": ["source {v}"],
    "timeout": ["wait at most {v} minutes", "with a timeout of {v}"], "retries": ["try it {v} times", "with {v} retries"],
    "remark": ["remark: {v}"], "verbose": ["verbosely", "in verbose mode"], "dry_run": ["only try it", "as a dry run"],
    "notify": ["and notify the others", "tell the others"], "force": ["do not ask back", "by force"], "date": ["on {v}"], "day": ["on {v}"],
    "due": ["due {v}", "until {v}"], "location": ["at {v}"], "color": ["in {v}"], "from": ["from {v}"],
    "owner": ["for {v}", "assign it to {v}", "{v} takes care of it", "{v} does it", "give it to {v}"], "until": ["until {v}", "up to {v}"]}
PASSED = ["{n} {v}", "with {n} {v}", "{n}: {v}", "the {n} is {v}", "{n} should be {v}"]
PASSING_SHARE, PASSING_LAST = 0.22, 0.3  # of what is not required; in a sentence of its own
# Names that do not say what a function does, so that its description must be read
UNLIKE_SHARE = 0.22
FRAMED = 0.2  # of descriptions
FRAMES = ["Use this: {}", "{} (beta)", "{}. Returns JSON.", "Internal: {}", "{}. Needs a login.", "{} of the system", "{} for the app",
          "Version 2. {}",
          "{}; ask the user if something is missing", "Tool of the {w}: {}", "[{w}] {}", "{} ({w} service)"]
DOERS = "do run handle process manage query call submit use exec perform lookup fetch check apply".split()
KINDS_OF = "service api helper client tool handler manager control action function op task job endpoint".split()
FOLLOWED = ("city", "ticker", "person", "full", "id", "team", "host", "word", "flight", "product_word", "topic", "coin", "file", "table", "domain",
            "league", "company", "road", "account", "url", "service", "namespace", "path", "device")
TAILED = [kind for kind in FOLLOWED if kind not in ("topic", "product_word", "full")]
PREFIXES = ["my", "api", "do", "tool", "x"]
SPARE_SHARE, LEFT_OUT, TAIL_SHARE = 0.2, 0.3, 0.15
# Said at the end of a request, and no value; the second ones not where a parameter may be a time.
TAILS = [" please", ", please", " for me", ", thanks", " if you can", ", will you", " this time"]
TIMELY = [" now", " right now", " today", " at the moment", " today", " right now, please"]
TIMES = ("date", "time", "minutes", "year", "month")


def unlike(rng: random.Random, noun: str) -> str:
    """A name that says little of what the function does, or nothing."""
    kind, word = rng.random(), rng.choice(EVERYDAY)
    if kind < 0.3:
        return f"{rng.choice(DOERS)}_{noun if rng.random() < 0.5 else word}"
    if kind < 0.55:
        return rng.choice(("{a}_{k}", "{a}{K}",
                           "{a}-{k}")).format(a=noun if rng.random() < 0.5 else word, k=(end := rng.choice(KINDS_OF)), K=end.capitalize())
    if kind < 0.8:
        return rng.choice(("{a}_{b}", "{a}{B}", "{b}.{a}")).format(a=word, b=(other := rng.choice(EVERYDAY)), B=other.capitalize())
    return rng.choice(("fn_{i}", "tool_{i}", "f{i}", "action{i}", "{k}_{i}", "{w}", "{k}{i}")).format(i=rng.randint(1, 99), k=rng.choice(KINDS_OF),
                                                                                                      w=new_word(rng))


def restyled(rng: random.Random, f: Function) -> str:
    """One of the names that programs have, or the topic's words in another spelling."""
    kind = rng.random()
    if kind < UNLIKE_SHARE:
        return unlike(rng, f.topic.split()[-1])
    if kind < 0.76:
        return rng.choice(f.names)
    words = f.topic.split()
    snake = "_".join(words)
    capital = [word.capitalize() for word in words]
    return rng.choice((snake, words[0] + "".join(capital[1:]), "".join(capital), "-".join(words), "_".join(words[1:] + words[:1]),
                       f"{rng.choice(PREFIXES)}_{snake}", f"{rng.choice(NOUNS)}_{snake}", f"{snake}_{rng.randint(2, 9)}",
                       f"{rng.choice(EVERYDAY)}.{snake}", f"{words[-1]}.{words[0]}"))


def type_of(p: Parameter) -> str:
    return "boolean" if p.kind == "boolean" else "integer" if p.kind in NUMBERS else "string"


def shown_choices(rng: random.Random, p: Parameter) -> list:
    """The catalog's in some order, or others."""
    if rng.random() < 0.3:
        return distinct(rng, rng.randint(2, 4), any_word)
    return rng.sample(p.choices, len(p.choices)) if rng.random() < 0.3 else p.choices


def shown_schema(rng: random.Random, f: Function) -> tuple:
    """Name, schema, {the catalog's name of a parameter: its name here} in the schema's order, {that name: what may be chosen},
    what is not required."""
    parameters = list(f.parameters)
    if rng.random() < SPARE_SHARE:
        more = rng.choice(SPARE)
        if not any(name in p.names for p in parameters for name in more.names):
            parameters.append(more)
    if rng.random() < 0.35:
        rng.shuffle(parameters)
    shown = {p.names[0]: p.names[0] for p in parameters}
    if rng.random() < 0.5:
        renamed = {p.names[0]: rng.choice(p.names) for p in parameters}
        shown = renamed if len(set(renamed.values())) == len(renamed) else shown
    choices = {p.names[0]: shown_choices(rng, p) for p in parameters if p.choices}
    spare = rng.random() < 0.1  # some programs describe nothing
    properties: dict = {}
    whole = "integer" if rng.random() < 0.85 else "number"
    for p in parameters:
        entry: dict = {"type": whole if type_of(p) == "integer" else type_of(p)}
        if not spare:
            example = "" if p.choices or p.kind == "boolean" or rng.random() > 0.12 else f", e.g. {draw_value(rng, p.kind)}"
            about = p.about + example + ("." if rng.random() < 0.15 else "")
            entry["description"] = about[0].upper() + about[1:] if rng.random() < 0.5 else about
        if p.choices:
            entry["enum"] = choices[p.names[0]]
        properties[shown[p.names[0]]] = entry
    name = restyled(rng, f)
    required = [shown[p.names[0]] for p in parameters if not p.optional]
    description = rng.choice(f.says) + ("." if rng.random() < 0.2 else "")
    if rng.random() < FRAMED:
        description = rng.choice(FRAMES).format(description.rstrip("."), w=rng.choice(EVERYDAY))
    schema = {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": required}}}
    return name, schema, shown, choices, [p for p in parameters if p.optional]


def tailed(rng: random.Random, f: Function, template: str) -> str:
    """With words at the end that are no value: where the last value ends is clear, or the request ends in other words."""
    body, mark = (template[:-1], template[-1]) if template[-1] in "?." else (template, "")
    last = body.rpartition("{")[2].rstrip("}")
    kinds = {p.names[0]: p.kind for p in f.parameters}
    if " please" in body.lower() or (body[-1] == "}" and kinds[last] not in TAILED) or not body[-1].isalpha() and body[-1] != "}":
        return template
    tails = TAILS if any(kind in TIMES for kind in kinds.values()) else TAILS + TIMELY
    return body + rng.choice(tails) + mark


def values_for(rng: random.Random, f: Function, template: str, constants: dict, choices: dict) -> dict:
    said = named_in(template)
    while True:
        values = {p.names[0]: rng.choice(choices[p.names[0]]) if p.choices else draw_value(rng, p.kind) for p in f.parameters if p.names[0] in said}
        if len(set(map(str, values.values()))) == len(values):
            return values | constants


def in_quotes(rng: random.Random, f: Function, values: dict) -> dict:
    """The values as they are said: texts now and then in quotes, which the arguments do not have."""
    kinds = {p.names[0]: p.kind for p in f.parameters}
    quote = rng.choice("\"\"'")
    return {name: f"{quote}{value}{quote}" if kinds[name] in QUOTED and "'" not in str(value) and rng.random() < 0.6 else value
            for name, value in values.items()}


def in_passing(rng: random.Random, p: Parameter, name: str, value: object) -> str:
    return rng.choice(PASSING.get(p.names[0]) or PASSED).format(n=name.replace("_", " "), v=value)


def with_more(rng: random.Random, f: Function, text: str, last: str, said: list) -> str:
    """The request with what is said in passing: at its end, or after it, or before it where its end is open."""
    if last in QUOTED or text[-1] not in "?.":
        return "".join(f"{part[0].upper()}{part[1:]}. " for part in said) + text
    if rng.random() < PASSING_LAST:
        more = ", ".join(said)
        return f"{text} {more[0].upper()}{more[1:]}."
    return text[:-1] + "".join(rng.choice((", ", " ", ", ")) + part for part in said) + text[-1]


def ask(rng: random.Random, f: Function, shown: dict, choices: dict, optional: list) -> tuple:
    """What is said, the arguments in the schema's order, the values by the catalog's names."""
    asks = f.short_asks if rng.random() < LEFT_OUT else f.asks
    template, constants = rng.choice(asks)
    values = values_for(rng, f, template, constants, choices)
    said = in_quotes(rng, f, values) if rng.random() < 0.3 else values
    core = template.format(**values)
    typed = tailed(rng, f, template) if rng.random() < TAIL_SHARE else template
    typed = casual(rng, typed) if rng.random() < 0.5 else typed
    text = typed.format(**said)
    if template[0] != "{" and rng.random() < 0.8:  # a value stays as it is
        text = text[0].upper() + text[1:]
    more = []
    for p in optional:
        if p.names[0] not in values and rng.random() < PASSING_SHARE:
            value = True if p.kind == "boolean" else rng.choice(choices[p.names[0]]) if p.choices else draw_value(rng, p.kind)
            if p.kind == "boolean" and p.names[0] not in PASSING or str(value) in map(str, values.values()):
                continue
            values[p.names[0]] = value
            more.append(in_passing(rng, p, shown[p.names[0]], value))
    if more:
        kinds = {p.names[0]: p.kind for p in f.parameters}
        text = with_more(rng, f, text, kinds.get(template.rstrip("?.").rpartition("{")[2].rstrip("}"), ""), more)
        core = f"{core} {' '.join(more)}"
    return Asked(text, core), {shown[name]: values[name] for name in shown if name in values}, values


def follow(rng: random.Random, f: Function, shown: dict) -> tuple:
    """The same asked of another value of the only parameter: "And in Rome?"."""
    p = f.parameters[0]
    value = draw_value(rng, p.kind)
    if rng.random() < 0.25:
        text = rng.choice(FOLLOWS_NAMED).format(value, n=rng.choice((shown[p.names[0]].replace("_", " "), p.names[0], f.topic.split()[-1])))
    else:
        text = rng.choice(FOLLOWS + (["And in {}?", "and in {}", "What about in {}?"] if p.kind == "city" else [])).format(value)
    return Asked(text, text), {shown[p.names[0]]: value}, {p.names[0]: value}


def both(rng: random.Random, f: Function, shown: dict) -> tuple:
    """The same asked of two values at once: what is said, the arguments of each call, the values of each."""
    p = f.parameters[0]
    name = p.names[0]
    template = rng.choice([template for template, constants in f.asks if named_in(template) == {name} and not constants])
    two = distinct(rng, 2, lambda r: draw_value(r, p.kind))
    text = casual(rng, template).format(**{name: rng.choice(("{} and {}", "{} and {}", "{} and also {}")).format(*two)})
    return Asked(text, f"{template} {two[0]} {two[1]}"), [{shown[name]: value} for value in two], [{name: value} for value in two]


def can_follow(f: Function) -> bool:
    return sum(not p.optional for p in f.parameters) == 1 and not f.parameters[0].optional and f.parameters[0].kind in FOLLOWED


def answer(f: Function, values: dict, result: dict) -> str:
    """What uses a result that has the function's own fields."""
    return f.answer.format(**(values | {name: spoken(value) for name, value in result.items()}))
