"""Reads manual.txt: what people want of Tessera, in their own words, and the answers.

An entry begins with "= ": a flag, "GET /path", or the answer itself. Then come its wordings, separated by " | ":
`do` verb phrases, `thing` what a flag sets or an endpoint gives, `about` what Tessera may support, `what` what a word means,
`when` what may happen, `that` what may be so, `line` what a plan prints,
`clause` what one may want to know ("who you are"), `ask` whole questions.
"""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Topic:
    head: str
    do: list = field(default_factory=list)
    thing: list = field(default_factory=list)
    about: list = field(default_factory=list)
    what: list = field(default_factory=list)
    when: list = field(default_factory=list)
    that: list = field(default_factory=list)
    line: list = field(default_factory=list)
    clause: list = field(default_factory=list)
    ask: list = field(default_factory=list)

    def wordings(self) -> list:
        return [self.do, self.thing, self.about, self.what, self.when, self.that, self.line, self.clause, self.ask]


def read_topics(path: Path) -> list:
    topics: list = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        kind, _, rest = line.partition(" ")
        if kind == "=":
            topics.append(Topic(rest))
        else:
            assert kind[:-1] in Topic.__dataclass_fields__ and kind[-1] == ":" and topics, f"{path.name}:{number}: no such line: {line}"
            getattr(topics[-1], kind[:-1]).extend(words.strip() for words in rest.split("|"))
    return topics


TOPICS = read_topics(Path(__file__).parent / "manual.txt")
FLAGS = [topic for topic in TOPICS if topic.head.startswith("--")]
PATHS = [topic for topic in TOPICS if topic.head.startswith(("GET /", "POST /"))]
FACTS = [topic for topic in TOPICS if topic not in FLAGS and topic not in PATHS]
