"""Questions about Tessera.

manual.txt holds what people want and how they say it, options.py what is asked of one flag; what is said of one endpoint or command
is written here.
"""

import random
from itertools import accumulate

from .asked import phrased
from .chat import Conversation, Turn
from .frames import AND, DO, DO_COMMAND, DO_FLAG, ENDPOINT_DO, ENDPOINT_THING, LINE, SUPPORT, THAT, THING, WHAT, WHEN, and_one, ask
from .identity import greeting_turns
from .options import ABOUT_FLAG, AND_MEANING, COMMANDS, KNOWN, flag_question, named, of_it, option_questions, with_value
from .tables import table_questions
from .topics import FACTS, FLAGS, PATHS, Topic
from .unknown import FEATURES, UNKNOWN, and_unknown, unknown_command, unknown_flag, unknown_path, unknown_request

ENDPOINTS = {
    "/health": ("GET", "says how the server is: ok, degraded, recovering or error"),
    "/ready": ("GET", "says whether the server can take requests"),
    "/metrics": ("GET", "gives counters and times in Prometheus text"),
    "/props": ("GET", "gives limits, defaults and the plan"),
    "/v1/models": ("GET", "lists the models"),
    "/v1/models/{id}": ("GET", "describes one model"),
    "/v1/chat/completions": ("POST", "answers a conversation"),
    "/v1/completions": ("POST", "continues a text"),
    "/tokenize": ("POST", "turns text into token ids"),
    "/detokenize": ("POST", "turns token ids into text"),
    "/apply-template": ("POST", "renders messages with the chat template"),
}
NOT_SERVED = ["/v1/embeddings", "/v1/responses", "/v1/messages", "/rerank"]
ENDPOINT_QUESTIONS = ["What does {} do?", "What is {} for?", "What is the endpoint {}?", "Explain {}.", "What do I get from {}?",
                      "Tell me about {}.", "What does {} give?", "What does {} return?", "What happens if I call {}?", "When do I need {}?",
                      "What do I use {} for?", "Describe {}.", "What is {}?", "Why is there {}?", "What can I do with {}?", "What about {}?", "{}?",
                      "Do you know {}?", "Is there {}?"]
METHOD_QUESTIONS = ["Which method does {} take?", "Is {} GET or POST?", "How do I call {}?", "Which HTTP method is {}?", "GET or POST for {}?",
                    "Do I GET or POST {}?", "What method do I use for {}?", "Does {} take GET?", "Does {} take POST?",
                    "With which method do I call {}?"]

ALL_COMMANDS = ["Which commands are there?", "List the commands.", "What commands does Tessera have?", "Which commands does tessera know?",
                "Name all commands.", "What can I type after tessera?", "Show me the commands.", "What are the commands of Tessera?",
                "Which subcommands are there?", "What subcommands does tessera have?"]
COMMAND_QUESTIONS_OF = [q for q in ENDPOINT_QUESTIONS if "endpoint" not in q and "return" not in q and "call" not in q] + [
    "What happens when I run {}?", "When do I use {}?", "What does the command {} do?", "Why would I run {}?", "What is the command {}?"]
COMMAND_OPTIONS = ["Which options does {} take?", "How do I get help for {}?", "Where are the options of {}?", "Which flags does {} have?",
                   "List the flags of {}.", "What can I give to {}?", "How do I see the options of {}?", "Which arguments does {} take?",
                   "Show me the options of {}."]


WHOLE = ["{}"]  # the frame of what is a question already
def purpose(topic: Topic) -> str:
    """The answer of a topic."""
    if topic in FLAGS:
        option = next(o for o in named(topic.head) if len(named(topic.head)) == 1 or "serve" in o["commands"])
        return f"Use {with_value(option)}: {option['help']}."
    if topic in PATHS:
        return f"Use {topic.head}: it {ENDPOINTS[topic.head.split()[1]][1]}."
    return topic.head


def unknown_questions(rng: random.Random) -> tuple:
    kind = rng.random()
    if kind < 0.5:
        return (*unknown_request(rng), and_purpose)
    if kind < 0.85:
        name = unknown_flag(rng, KNOWN)
        asked = flag_question(rng, name) if rng.random() < 0.7 else rng.choice(ABOUT_FLAG).format(name)
        return asked, f"I know no flag {name}. See tessera --help.", AND_MEANING
    if kind < 0.94:
        path = unknown_path(rng, [*ENDPOINTS, *NOT_SERVED])
        return rng.choice(ENDPOINT_QUESTIONS + METHOD_QUESTIONS).format(path), f"I know no endpoint {path}.", AND_ENDPOINT
    command = unknown_command(rng, list(COMMANDS))
    return rng.choice(COMMAND_QUESTIONS_OF).format(command), f"I know no command {command}. See tessera --help.", AND_COMMAND


def and_purpose(rng: random.Random) -> tuple:
    """After a question by purpose: "and the host?" """
    kind = rng.random()
    if kind < 0.35:
        return and_unknown(rng) if kind < 0.2 else AND_MEANING(rng)
    topic = rng.choice([t for t in FLAGS if t.thing])
    return ask(rng, AND, rng.choice(topic.thing)), purpose(topic)


def by_size(topics: list):
    """Draws a topic: what has more wordings is asked for more often."""
    sizes = list(accumulate(sum(map(len, topic.wordings())) ** 0.5 for topic in topics))
    return lambda rng: rng.choices(topics, cum_weights=sizes)[0]


some_purpose, some_path, some_fact = map(by_size, (FLAGS, PATHS, FACTS))


def worded(rng: random.Random, topic: Topic, frames: dict) -> tuple:
    """The kind of one of the topic's wordings, and that wording as a question."""
    kinds = [kind for kind in frames if getattr(topic, kind)]
    kind = rng.choices(kinds, [len(getattr(topic, kind)) ** 0.5 for kind in kinds])[0]
    return kind, ask(rng, frames[kind], rng.choice(getattr(topic, kind)))


def flag_by_purpose(rng: random.Random) -> tuple:
    topic = some_purpose(rng)
    _, asked = worded(rng, topic, {"do": DO if rng.random() < 0.6 else DO_FLAG, "thing": THING, "ask": WHOLE})
    return asked, purpose(topic), of_it(topic.head) if rng.random() < 0.4 else and_purpose


def path_meaning(rng: random.Random) -> tuple:
    path = rng.choice(list(ENDPOINTS))
    return path, f"{ENDPOINTS[path][0]} {path} {ENDPOINTS[path][1]}."


AND_ENDPOINT = and_one(path_meaning)
ABOUT_PATH = ["What does the {} endpoint do?", "What is the {} endpoint for?", "Explain the endpoint {}.", "What does the path {} give?"]


def and_path(rng: random.Random) -> tuple:
    topic = rng.choice(PATHS)
    return ask(rng, AND, rng.choice(topic.thing)), purpose(topic)


def endpoint_questions(rng: random.Random) -> tuple:
    kind = rng.random()
    if kind < 0.35:
        path, answer = path_meaning(rng)
        return rng.choice(ENDPOINT_QUESTIONS + ABOUT_PATH).format(path), answer, AND_ENDPOINT
    if kind < 0.45:
        path = rng.choice(list(ENDPOINTS))
        return rng.choice(METHOD_QUESTIONS).format(path), f"{path} takes {ENDPOINTS[path][0]}.", None
    topic = some_path(rng)
    # The commands do what POST does, so only what is looked at is asked for without a word of HTTP.
    do = DO if topic.head.startswith("GET") and rng.random() < 0.4 else ENDPOINT_DO
    _, asked = worded(rng, topic, {"do": do, "thing": ENDPOINT_THING, "ask": WHOLE})
    return asked, purpose(topic), and_path


def command_meaning(rng: random.Random) -> tuple:
    command = rng.choice(list(COMMANDS))
    return f"tessera {command}", f"tessera {command} {COMMANDS[command]}."


AND_COMMAND = and_one(command_meaning)
CLEAR = ["calibrate", "detokenize", "tokenize", "synth", "logits", "bench", "inspect"]  # that nobody takes for another word


def bare_command(rng: random.Random, command: str) -> str:
    """Without the program's name before it."""
    return rng.choice(("the {} command", "the command {}", "`{}`", "\"{}\"", "the subcommand {}", *["{}"] * 3 * (command in CLEAR))).format(command)


def command_questions(rng: random.Random) -> tuple:
    command, answer = command_meaning(rng)
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(ALL_COMMANDS), f"The commands are {', '.join(COMMANDS)}.", AND_COMMAND
    if kind < 0.28:
        return rng.choice(COMMAND_OPTIONS).format(command), f"See {command} --help.", None
    if rng.random() < 0.4:
        command = bare_command(rng, command.split()[1])
    return rng.choice(COMMAND_QUESTIONS_OF).format(command), answer, AND_COMMAND


FACT_FRAMES = {"thing": THING, "about": SUPPORT, "what": WHAT, "when": WHEN, "that": THAT, "line": LINE, "ask": WHOLE}


def facts(rng: random.Random) -> tuple:
    topic = some_fact(rng)
    special = DO_COMMAND if topic.head.startswith(("Use tessera", "Run ")) else DO_FLAG if "--" in topic.head else DO
    kind, asked = worded(rng, topic, {"do": DO if rng.random() < 0.7 else special, **FACT_FRAMES})
    return asked, topic.head, {"thing": and_purpose, "about": and_about, "what": and_what}.get(kind)


def and_what(rng: random.Random) -> tuple:
    """After "What is ...?"."""
    topic = rng.choice([t for t in FACTS if t.what])
    return ask(rng, AND, rng.choice(topic.what)), topic.head


def and_about(rng: random.Random) -> tuple:
    """After "Does Tessera support ...?"."""
    if rng.random() < 0.3:
        return ask(rng, AND, rng.choice(FEATURES)), UNKNOWN
    topic = rng.choice([t for t in FACTS if t.about])
    return ask(rng, AND, rng.choice(topic.about)), topic.head


KINDS = {option_questions: 0.18, flag_by_purpose: 0.23, facts: 0.28, endpoint_questions: 0.08, command_questions: 0.06, table_questions: 0.05,
         unknown_questions: 0.12}


def question(rng: random.Random) -> tuple:
    """What is asked, the answer, and what draws "and ...?" after it, or None."""
    asked, answer, more = rng.choices(list(KINDS), list(KINDS.values()))[0](rng)
    return phrased(rng, asked), answer, more


def questions(rng, count: int) -> list:
    """Turns, of which later ones may go on with "and ...?"."""
    turns: list = []
    more = None
    for _ in range(count):
        def draw(more=more) -> tuple:
            if more is None or rng.random() < 0.3:
                return question(rng)
            asked, answer, *then = more(rng)  # and what may be asked after that
            return phrased(rng, asked), answer, then[0] if then else more
        asked, answer, more = rng.user(draw)
        turns += [Turn("user", asked), Turn("assistant", answer, "A question about Tessera.")]
    return turns


def manual(rng: random.Random) -> Conversation:
    before = greeting_turns(rng) if rng.random() < 0.06 else []
    return Conversation("manual", before + questions(rng, rng.choice((1, 1, 1, 1, 2, 2, 3))), thinking=rng.random() < 0.5)
