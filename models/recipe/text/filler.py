"""Long texts as people paste them, for recall.py to hide values in: prose, documentation, mails, chats, logs, tables, settings.

    text = text_with(rng, 1000, [("red fox", "4711", "code")], [], some_style(rng, 1000))

A text is made of units, each with the mark after it; what is hidden becomes a unit of its own, in the text's manner.
"""

import re
from dataclasses import dataclass
from typing import Callable

from .identity import SELF
from .options import OPTIONS
from .prose import RULES, carried
from .results import plain_object
from .topics import TOPICS
from .words import (ADJECTIVES, CITIES, COLORS, DAYS, EVERYDAY, FRUITS, NAMES, NOUNS, ROOMS, THINGS, Dice, any_word, code, hard_choice, new_word,
                    part_of)

# {k} a key, {v} its value, {n} what the value is called. A clause becomes a sentence of its own or stands within another one.
CLAUSES = ["the {n} of {k} is {v}", "the {n} of {k} is {v}", "the {n} for {k} is {v}", "{k} has the {n} {v}", "the {n} {v} belongs to {k}",
           "use {v} as the {n} of {k}", "use {v} as the {n} for {k}", "{v} is the {n} of {k}", "{k}'s {n} is {v}", "for {k} the {n} {v} was chosen",
           "{k} got the {n} {v}", "the {n} of {k} was changed to {v}", "{k} is registered with the {n} {v}", "the {n} that goes with {k} is {v}",
           "whoever needs {k} has to enter {v}", "{k} answers to the {n} {v}", "{k} = {v}", "the right {n} for {k} is still {v}",
           "they gave {k} the {n} {v}", "as its {n}, {k} uses {v}", "the {n} of {k} reads {v}"]
BACKWARDS = [clause for clause in CLAUSES if clause.index("{v}") < clause.index("{k}")]  # what stood before its key must be known when that comes
SENTENCES = ["The code of {k} is {v}.", "Remember: {k} = {v}.", "Note that {k} has the value {v}.", "The value for {k} is {v}.",
             "Key {k}, value {v}.",
             "{k}: {v}."]
LINES = ["{k}: {v}", "{k}: {v}", "{k} = {v}", "{k} = {v}", "{k}={v}", "{k} - {v}", "{k} -> {v}", "- {k}: {v}", "* {k} = {v}", "| {k} | {v} |",
         "{k}\t{v}", "{k}; {v}", '"{k}": "{v}",', "{k},{v}", "  {k}: {v}", "# {k}: {v}", "The {n} of {k}: {v}", "{k} ({n}): {v}", "> {k}: {v}",
         "[{k}] {v}", "**{k}**: {v}", "set {k} = {v}", "export {k}={v}", "{k} | {v}", "{n} of {k} = {v}", "  - {k} is {v}"]
# Where a key is only spoken of, and has no value
MENTIONS = ["Nobody mentioned {k} again.", "A word about {k}: nothing has changed.", "See also {k}.", "{name} asked about {k}, but got no answer.",
            "The story of {k} is told elsewhere.", "{name} and {name2} argued about {k} for a while.", "There is nothing new on {k}.",
            "What became of {k} is not known.", "{name} took {k} to {city}.", "Without {k} it would not have worked."]
PLAIN = [
    "{n} walks from {c} to {d} on {day}.", "The {t} in the {r} is {col}.", "On {day} the market of {c} sells {f}.",
    "{n} and {m} talk about the {a} {o}.", "It rains in {c}, and the {o} stays {a}.", "Nobody in {c} has seen the {t} of {n}.",
    "The {a} {o} stands near the {p}.", "{n} paints the {t} {col} and goes to the {r}.", "{m} brings {f} for {n}.",
    "Every {day} a train leaves {c} for {d}.", "A {col} {t} lies under the {o}.", "{n} writes a letter to {m} about {c}.",
    "The {o} of {c} is {a} this year.", "In the {r} there is a {a} {t}.", "{n} counts {x} {f} in the {r}.",
    "The road to {d} is {a} and {b}.", "{m} calls it {w}, but {n} calls it {v}.", "The {p} opens at {h} on {day}."]
SLOTS = {"n": NAMES, "m": NAMES, "c": CITIES, "d": CITIES, "day": DAYS, "t": THINGS, "r": ROOMS, "col": COLORS, "f": FRUITS,
         "a": ADJECTIVES, "b": ADJECTIVES, "o": NOUNS, "p": NOUNS, "x": range(2, 100), "h": range(6, 12)}
PLAIN_SLOTS = [(template, re.findall(r"{(\w+)}", template)) for template in PLAIN]
# What this generator says elsewhere, but no question of a test: English of all kinds
OTHERS = sorted({text for topic in TOPICS + SELF for text in [topic.head, *topic.ask] if part_of(text) == "train"} |
                {option["help"].capitalize() + "." for option in OPTIONS})
SMALL = """the of and to in a is that it was for on are as with they be at one have this from or had by but some what there we can out other were
all your when up use how said an each she which do their time if will way about many then them would like so these her long make thing see him
two has look more day could go come did my sound no most number who over know than call first people may down side been now find""".split()
PUNCTUATION = [" "] * 14 + [", ", ", ", ". ", ". ", "; ", ": ", " - ", "? ", "! ", "\n", " (", ") ", " \"", "\" ", "... ", " & ", "/"]
LEVELS = "INFO WARN ERROR DEBUG TRACE NOTICE".split()


def plain(rng: Dice):
    mark = rng.choice((" ", "\n"))
    while True:
        template, slots = rng.choice(PLAIN_SLOTS)
        yield template.format(**{slot: rng.choice(SLOTS[slot]) if slot in SLOTS else new_word(rng) for slot in slots}) + mark


def prose(*rules: str):
    """Paragraphs of a kind, with a heading here and there; or all in one line."""
    def units(rng: Dice):
        draw, flat, paragraph = RULES[rng.choice(rules)], rng.random() < 0.3, rng.uniform(0.05, 0.35)
        while True:
            text = draw(rng)
            if rng.random() < OTHER_KIND:
                draw = RULES[rng.choice(rules)]
            if flat or rng.random() > paragraph:
                yield text + " "
            else:
                yield text + "\n\n"
                if rng.random() < 0.2:
                    yield rng.choice(("# ", "## ", "", "", "** ")) + RULES["heading"](rng) + "\n\n"
    return units


def others(rng: Dice):
    mark = rng.choice((" ", " ", "\n", "\n- "))
    while True:
        yield rng.choice(OTHERS) + mark


def noise(rng: Dice):
    """Words and marks without sense, which nothing else can be."""
    while True:
        text = ""
        for _ in range(rng.randint(4, 14)):
            word = rng.choice(SMALL) if rng.random() < 0.5 else any_word(rng) if rng.random() < 0.6 else rng.choice(EVERYDAY)
            text += word + rng.choice(PUNCTUATION)
        yield text.rstrip() + rng.choice((" ", ". ", "\n"))


def words(rng: Dice):
    """Ordinary words in no order, as in a test of recall that somebody made in a minute; sentences, or no marks at all."""
    pool = rng.choice((NOUNS, EVERYDAY, THINGS, ADJECTIVES + NOUNS, SMALL + NOUNS, NOUNS + EVERYDAY + THINGS + ADJECTIVES + COLORS))
    form = rng.random()
    while True:
        text = " ".join([rng.choice(pool) for _ in range(rng.randint(5, 15))])
        if form < 0.35:
            yield text + " "
        elif form < 0.5:
            yield text + rng.choice(("\n", ". ", ", "))
        else:
            yield text[0].upper() + text[1:] + (". " if form < 0.85 else ".\n")


def option_line(rng: Dice) -> str:
    option = rng.choice(OPTIONS)
    return f"  --{rng.choice(EVERYDAY)}-{rng.choice(EVERYDAY)} {option['value']}".ljust(rng.choice((24, 30))) + option["help"] + "\n"


def code_line(rng: Dice) -> str:
    a, b, c = rng.choice(EVERYDAY), rng.choice(EVERYDAY), rng.choice(NOUNS)
    return rng.choice(("{a}.{b}({x})", "if {a} > {x}: return {b}", "def {a}_{b}({c}):", "{a} = {b}[{x}] + {c}", "$ {a} --{b} {c}.txt",
                       "for {a} in {b}:",
                       "// {c} {a}", "print(\"{a} {b}\")", "{a}: {x}", "import {a}", "let {a} = {{ {b}: '{c}' }};", "{a}->{b} *= {x};",
                       "SELECT {a} FROM {b} WHERE {c} = {x};", "<{a} {b}=\"{c}\">", "return {a} % {x} == 0 ? {b} : {c};")).format(
                           a=a, b=b, c=c, x=rng.randint(0, 999)) + "\n"


def document(rng: Dice):
    """Headings, paragraphs, lists, options, code."""
    rules = rng.sample(("story", "report", "lexicon", "howto", "opinion"), 2)
    while True:
        kind = rng.random()
        if kind < 0.2:
            yield f"\n{'#' * rng.randint(1, 4)} {RULES['heading'](rng)}\n\n"
        elif kind < 0.5:
            for _ in range(rng.randint(1, 4)):
                yield RULES[rng.choice(rules)](rng) + " "
            yield "\n\n"
        elif kind < 0.75:
            mark = rng.choice(("- ", "* ", "+ ", "", "[ ] "))
            for i in range(rng.randint(2, 7)):
                yield (mark or f"{i + 1}. ") + RULES["bullet"](rng) + "\n"
        elif kind < 0.87:
            for _ in range(rng.randint(2, 6)):
                yield option_line(rng)
        else:
            yield rng.choice(("```\n", "```python\n", "\n"))
            for _ in range(rng.randint(1, 5)):
                yield rng.choice(("    ", "", "")) + code_line(rng)
            yield rng.choice(("```\n\n", "\n"))


def mails(rng: Dice):
    while True:
        sender, to = rng.choice(NAMES), rng.choice(NAMES)
        yield f"From: {sender.lower()}@{rng.choice(NOUNS)}.com\nTo: {to.lower()}@{rng.choice(NOUNS)}.org\n"
        yield f"Subject: {RULES['heading'](rng)}\n\n{rng.choice(('Dear', 'Hi', 'Hello', 'Good morning'))} {to},\n\n"
        for _ in range(rng.randint(2, 12)):
            yield RULES["mailbody"](rng) + rng.choice((" ", " ", " ", "\n", "\n\n"))
        yield f"\n{rng.choice(('Best', 'Kind regards', 'Yours', 'See you', 'Cheers'))},\n{sender}\n\n{rng.choice(('---', '', '>>>', '* * *'))}\n"


def dialogue(rng: Dice):
    people = rng.sample(NAMES, rng.randint(2, 4))
    form = rng.choice(("{n}: {t}\n", "{n}: {t}\n", "<{n}> {t}\n", "[{c}] {n}: {t}\n", "{n}\n{t}\n\n", "- {t}\n"))
    while True:
        yield form.format(n=rng.choice(people), t=RULES["chat"](rng), c=RULES["clock"](rng))


def log(rng: Dice):
    form = rng.choice(("2027-{mo:02}-{d:02} {h:02}:{mi:02}:{s:02} {l} {e}\n", "[{h:02}:{mi:02}:{s:02}] {l}: {e}\n", "{l} {e}\n",
                       "{mo:02}/{d:02} {h:02}:{mi:02} [{p}] {e}\n", "t={s}.{mi:02} level={l} msg=\"{e}\"\n"))
    mo, d, h = rng.randint(1, 12), rng.randint(1, 28), rng.randint(0, 23)
    while True:
        yield form.format(mo=mo, d=d, h=h, mi=rng.randint(0, 59), s=rng.randint(0, 59), l=rng.choice(LEVELS), p=rng.choice(EVERYDAY),
                          e=RULES["event"](rng))


def table(rng: Dice):
    count, mark = rng.randint(3, 5), rng.choice((" | ", ",", "\t", "; ", "  "))
    draws = [rng.choice((any_word, RULES["name"], RULES["city"], RULES["big"], RULES["clock"], RULES["color"], RULES["year"], code))
             for _ in range(count)]
    edges = ("| ", " |\n") if mark == " | " else ("", "\n")
    yield edges[0] + mark.join(rng.choice(EVERYDAY) for _ in range(count)) + edges[1]
    if mark == " | ":
        yield "|---" * count + "|\n"
    while True:
        yield edges[0] + mark.join([draw(rng) for draw in draws]) + edges[1]


def settings(rng: Dice):
    """Lines of a file of settings, whose names are longer than keys."""
    form = rng.choice(("{a}_{b}_{c} = {v}\n", "{a}.{b}.{c}: {v}\n", "  {a}-{b}-{c}={v}\n", "\"{a}_{b}_{c}\": {v},\n", "{A}_{B}_{C}={v}\n"))
    while True:
        if rng.random() < 0.12:
            yield rng.choice(("\n[{}]\n", "\n# {}\n", "\n{}:\n")).format(rng.choice(EVERYDAY))
        a, b, c = rng.choice(EVERYDAY), rng.choice(EVERYDAY), rng.choice(EVERYDAY)
        kind = rng.random()
        value = rng.randint(0, 9999) if kind < 0.4 else rng.choice(("true", "false", "on", "off", "auto")) if kind < 0.6 else any_word(rng)
        yield form.format(a=a, b=b, c=c, A=a.upper(), B=b.upper(), C=c.upper(), v=value)


def objects(rng: Dice):
    while True:
        yield str(plain_object(rng, rng.randint(2, 4))).replace("'", '"') + rng.choice(("\n", ",\n", " "))


@dataclass
class Style:
    units: Callable  # endless texts
    per_token: float  # its characters a token
    planted: str  # how values are hidden: "prose" in sentences and within them, "lines", "both", "plain" as shorter texts do
    carrier: str = "carrier"


STYLES = {"plain": Style(plain, 4.2, "plain"), "prose": Style(prose("story", "story", "report", "lexicon", "howto", "opinion"), 3.55, "prose"),
          "document": Style(document, 3.0, "both"), "mails": Style(mails, 3.2, "both"), "dialogue": Style(dialogue, 2.9, "prose"),
          "log": Style(log, 1.7, "both"), "table": Style(table, 1.45, "lines"), "settings": Style(settings, 2.1, "lines"),
          "others": Style(others, 3.2, "both"), "noise": Style(noise, 2.9, "both"), "words": Style(words, 5.0, "both"),
          "objects": Style(objects, 1.9, "lines"),
          "held": Style(prose("heldsay"), 2.9, "prose", "heldcarrier")}
# Weights, which need not add up to one
SHARES = {"plain": 0.17, "prose": 0.3, "document": 0.16, "mails": 0.08, "dialogue": 0.07, "log": 0.05, "table": 0.03, "settings": 0.03,
          "others": 0.05, "noise": 0.04, "words": 0.1, "objects": 0.02}
LONG = 8000  # tokens from which a text is of a style whose length in tokens is known well
LONG_STYLES = ("plain", "prose", "document", "mails", "others")
KEY_PER_TOKEN = 2.2  # characters of what is hidden
OTHER_KIND = 0.04  # after a sentence of prose
MIXED = 0.25  # of texts: two styles, one after the other
HELD = "held"  # is a test's alone


def some_style(rng: Dice, tokens: int) -> str:
    names = LONG_STYLES if tokens > LONG else list(SHARES)
    return rng.choices(names, [SHARES[name] for name in names])[0]


def hidden(rng: Dice, style: Style, form: str, k: str, v: str, n: str) -> str:
    """What says the value, and the mark after it."""
    if style.planted == "plain":
        return (form or rng.choice(SENTENCES)).format(k=k, v=v) + "\0"
    if style.planted == "lines" or style.planted == "both" and rng.random() < 0.4:
        return "\n" + rng.choice(LINES).format(k=k, v=v, n=n) + "\n"
    if rng.random() < 0.15:
        return rng.choice(SENTENCES).format(k=k, v=v) + " "
    clause = hard_choice(rng, CLAUSES, BACKWARDS)
    said = clause.format(k=k, v=v, n=n)
    if clause.startswith("use "):
        return f"U{said[1:]}. "
    return carried(rng, style.carrier, said, said if clause[0] == "{" else said[0].upper() + said[1:]) + " "


def units_of(rng: Dice, style: Style, tokens: float) -> list:
    left, found = tokens * style.per_token, []
    for unit in style.units(rng):
        left -= len(unit)
        if left < 0:
            return found
        found.append(unit)
    return found


def text_with(rng: Dice, tokens: int, planted: list, mentions: list, name: str) -> str:
    """About `tokens` tokens that hide the planted (key, value, what it is called), and speak of other keys."""
    style = STYLES[name]
    form = rng.choice(SENTENCES) if rng.random() < 0.5 else ""
    extra = [hidden(rng, style, form, *found) for found in planted]
    extra += [rng.choice(MENTIONS).format(k=k, name=rng.choice(NAMES), name2=rng.choice(NAMES), city=rng.choice(CITIES)) + " " for k in mentions]
    left = tokens - sum(map(len, extra)) / KEY_PER_TOKEN
    if name != HELD and rng.random() < MIXED:
        part = rng.random()
        units = units_of(rng, style, left * part) + units_of(rng, STYLES[some_style(rng, tokens)], left * (1 - part))
    else:
        units = units_of(rng, style, left)
    for text in extra:
        units.insert(rng.randint(0, len(units)), text)
    text = "".join(units).replace("\0", units[0][-1] if units and units[0][-1] in " \n" else " ")
    return re.sub(r" +\n", "\n", text).replace("\n\n\n", "\n\n").strip()
