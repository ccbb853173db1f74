"""Questions about Tessera.

options.tsv holds the flags as the program's own option table has them (read_options.py), manual.txt what people want and
how they say it; what is said of one flag, endpoint or column is written here.
"""

import random
from itertools import accumulate
from pathlib import Path

from .asked import phrased
from .chat import Conversation, Turn
from .frames import AND, DO, DO_COMMAND, DO_FLAG, ENDPOINT_DO, ENDPOINT_THING, LINE, SUPPORT, THAT, THING, WHAT, WHEN, and_one, ask
from .identity import greeting_turns
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

FLAG_QUESTIONS = ["What does {} do?", "What is {} for?", "Explain {}.", "What does the flag {} mean?", "Tell me about {}.",
                  "What is the option {}?", "How do I use {}?", "Describe {}.", "What happens if I set {}?", "What happens when I use {}?",
                  "What happens with {}?", "What if I set {}?", "What if I give {}?", "What does {} change?", "What does {} mean?", "What is {}?",
                  "When do I need {}?", "When should I use {}?", "Why would I use {}?", "What is the meaning of {}?", "What is the purpose of {}?",
                  "What effect does {} have?", "What can I do with {}?", "What does it do when I set {}?", "What about {}?", "How about {}?", "{}?",
                  "{}", "Is there a flag {}?", "Does {} exist?", "Do you know {}?", "Can I use {}?", "What is {} good for?", "How does {} work?",
                  "Does Tessera have {}?", "Does Tessera know {}?", "What will {} do?", "I saw {}. What is it?",
                  "Someone told me to use {}. What is it?", "Should I set {}?", "What do I give to {}?", "And {}?", "I do not understand {}.",
                  "Help me with {}.", "What would {} do?", "Is {} a flag?", "What does tessera serve do with {}?", "What does setting {} do?"]
BARE_QUESTIONS = ["What does the {} flag do?", "What does the {} option do?", "Explain the {} flag.", "What is the {} option for?",
                  "What is the {} flag?", "How do I use the {} option?", "Tell me about the {} option.", "When do I need the {} flag?",
                  "What happens if I set the {} flag?"]
DEFAULT_QUESTIONS = ["What is the default of {}?", "What is {} by default?", "Which value has {} if I leave it out?", "Default of {}?",
                     "What is the default value of {}?", "What happens if I leave {} out?", "What if I do not set {}?", "Which default has {}?",
                     "What is {} when I do not give it?", "Does {} have a default?", "What is the standard value of {}?",
                     "How is {} set by default?", "What does {} default to?", "Without {}, what is used?"]
COMMAND_QUESTIONS = ["Which commands take {}?", "Where can I use {}?", "What commands know {}?", "Which commands accept {}?",
                     "With which commands can I use {}?", "Which command has {}?", "Where does {} work?", "For which commands is {}?"]
CHOICE_QUESTIONS = ["Which values can {} have?", "What are the choices of {}?", "What can I give to {}?", "Which values does {} accept?",
                    "What values are allowed for {}?", "What can {} be?", "Which values are there for {}?", "What may I write after {}?",
                    "List the values of {}."]
KEY_QUESTIONS = ["What is the configuration key of {}?", "How is {} called in the config file?", "Which TOML key belongs to {}?",
                 "How do I write {} in the config file?", "What is {} in the TOML file?", "Which key sets {} in the configuration file?"]
DEFAULT_THINGS = ["What is the default {}?", "What is the default {}?", "Which {} is the default?", "Default {}?", "What {} does it use by default?", "The default {}?",
                  "Which {} is used if I say nothing?", "What {} do I get by default?", "Tell me the default {}.", "What is the standard {}?", "default {}",
                  "Which {} does Tessera take by default?", "What is the usual {}?", "Do you know the default {}?", "What {} without a flag?"]
# After a question about an option: of the same one
ITS_DEFAULT = ["And the default?", "And its default?", "What is its default?", "And by default?", "Which default does it have?", "And if I leave it out?",
               "What if I do not give it?", "Default?", "And what is the default?", "What's the default value?", "And without it?", "What is it by default?",
               "And the default value?", "What does it default to?", "Default value?", "And if I do not set it?", "Does it have a default?", "And when I leave it out?",
               "What is used without it?", "The default?", "And the default of it?", "What would be the default?", "What about the default?", "How about the default?"]
ITS_COMMANDS = ["Which commands take it?", "And for which commands?", "With which commands?", "Where can I use it?", "Which commands know it?", "For which command is it?",
                "And which commands accept it?", "Does every command have it?", "Where does it work?", "And where does that work?", "In which commands?"]
ITS_CHOICES = ["Which values can it have?", "And which values?", "What can it be?", "What are the choices?", "Which values are allowed?", "What may I write after it?",
               "And the choices?", "Which values does it take?", "What values are there?", "And the possible values?", "List its values."]
FIND_FLAG = ["Which flag is this: {}?", "Which option stands for: {}?", "I look for the flag with this meaning: {}", "Name the flag: {}"]

COMMANDS = {
    "serve": "answers an OpenAI-style HTTP API",
    "run": "answers one prompt, or chats on the terminal",
    "plan": "shows where everything would lie and what it takes",
    "devices": "lists what can compute here, and why something cannot",
    "bench": "measures prompt and generation speed",
    "calibrate": "counts which experts a text needs",
    "inspect": "shows a GGUF file's metadata and tensors",
    "tokenize": "turns text into token ids",
    "detokenize": "turns token ids into text",
    "template": "renders a conversation with the chat template",
    "logits": "writes the logits of a token sequence",
    "synth": "writes a model file with random weights",
    "worker": "computes layers or experts for a server in another process",
}
ALL_COMMANDS = ["Which commands are there?", "List the commands.", "What commands does Tessera have?", "Which commands does tessera know?",
                "Name all commands.", "What can I type after tessera?", "Show me the commands.", "What are the commands of Tessera?",
                "Which subcommands are there?", "What subcommands does tessera have?"]
COMMAND_QUESTIONS_OF = [q for q in ENDPOINT_QUESTIONS if "endpoint" not in q and "return" not in q and "call" not in q] + [
    "What happens when I run {}?", "When do I use {}?", "What does the command {} do?", "Why would I run {}?", "What is the command {}?"]
COMMAND_OPTIONS = ["Which options does {} take?", "How do I get help for {}?", "Where are the options of {}?", "Which flags does {} have?",
                   "List the flags of {}.", "What can I give to {}?", "How do I see the options of {}?", "Which arguments does {} take?",
                   "Show me the options of {}."]


# Flags that the option table does not hold, since no file can set them.
GENERAL = [("--config", "PATH", "read this TOML file instead of the user's"), ("--print-config", "", "show every value with its origin, and end"),
           ("-h,--help", "", "show the options of a command")]


def load_options() -> list:
    lines = (Path(__file__).parent / "options.tsv").read_text().splitlines()
    columns = lines[0].split("\t")
    general = [dict(dict.fromkeys(columns, ""), flags=flags, value=value, help=text, commands=" ".join(COMMANDS)) for flags, value, text in GENERAL]
    return [dict(zip(columns, line.split("\t"))) for line in lines[1:]] + general


OPTIONS = load_options()
WHOLE = ["{}"]  # the frame of what is a question already
KNOWN = [name for option in OPTIONS for name in option["flags"].split(",")] + ["--version"]
ABOUT_FLAG = FLAG_QUESTIONS * 2 + DEFAULT_QUESTIONS + COMMAND_QUESTIONS + CHOICE_QUESTIONS + KEY_QUESTIONS


def long_name(option: dict) -> str:
    return next(name for name in option["flags"].split(",") if name.startswith("--"))


def with_value(option: dict) -> str:
    return long_name(option) + (" " + option["value"] if option["value"] else "")


def named(name: str) -> list:
    return [option for option in OPTIONS if name in option["flags"].split(",")]


def meaning(name: str) -> str:
    """What a flag does; of one that commands share by name alone, each meaning with its commands."""
    found = named(name)
    return " ".join(f"{name}{' ' + o['value'] if o['value'] else ''}: {o['help']}." + (f" Default: {o['default']}." if o["default"] else "") +
                    (f" Commands: {o['commands'].replace(' ', ', ')}." if len(found) > 1 else "") for o in found)


def default(name: str) -> str:
    value = named(name)[0]["default"]
    return f"The default of {name} is {value}." if value else f"{name} has no default."


ASKING = ("how", "which", "where", "what", "whether", "when", "why", "who", "if", "that")
# {flag: what it sets, as "the default ..." can be asked of}
DEFAULT_OF = {topic.head: things for topic in FLAGS if len(named(topic.head)) == 1 and named(topic.head)[0]["default"]
              for things in [[thing.removeprefix("the ") for thing in topic.thing if len(thing.split()) < 5 and thing.split()[0] not in ASKING]] if things}


def purpose(topic: Topic) -> str:
    """The answer of a topic."""
    if topic in FLAGS:
        option = next(o for o in named(topic.head) if len(named(topic.head)) == 1 or "serve" in o["commands"])
        return f"Use {with_value(option)}: {option['help']}."
    if topic in PATHS:
        return f"Use {topic.head}: it {ENDPOINTS[topic.head.split()[1]][1]}."
    return topic.head


def given(rng: random.Random, name: str) -> str:
    """The flag, sometimes with a value as it stands on a command line."""
    found = named(name)
    if rng.random() > 0.12:
        return name
    if not found:
        return f"{name} {rng.choice((rng.randint(1, 9999), 'on', 'off', 'all', rng.randint(1, 9)))}"
    choices, value = found[0]["choices"], found[0]["value"]
    return name + (" " + rng.choice(choices.split("|")) if choices else f" {rng.randint(1, 9999)}" if value in ("N", "T", "P", "X") else "")


def flag_question(rng: random.Random, name: str) -> str:
    if name.startswith("--") and rng.random() < 0.08:
        return rng.choice(BARE_QUESTIONS).format(name.removeprefix("--"))
    return rng.choice(FLAG_QUESTIONS).format(given(rng, name))


def some_flag(rng: random.Random) -> str:
    """Each option alike; now and then by its short or other name."""
    return rng.choice(rng.choice(OPTIONS)["flags"].split(",")) if rng.random() < 0.2 else long_name(rng.choice(OPTIONS))


def meaning_or_not(rng: random.Random) -> tuple:
    if rng.random() < 0.75:
        name = some_flag(rng)
        return name, meaning(name)
    name = unknown_flag(rng, KNOWN)
    return name, f"I know no flag {name}. See tessera --help."


AND_MEANING = and_one(meaning_or_not)
OF_IT_SHARE = 0.45


def of_it(name: str):
    """Draws what may be asked after an option: its default, commands or values; or about another option."""
    def follow(rng: random.Random) -> tuple:
        if rng.random() > OF_IT_SHARE or len(named(name)) != 1:
            other, answer = meaning_or_not(rng)
            return ask(rng, AND, other), answer, of_it(other) if named(other) else AND_MEANING
        asked, answer = about_it(rng, named(name)[0], name)
        return asked, answer, follow
    return follow


def about_it(rng: random.Random, option: dict, name: str) -> tuple:
    kind = rng.random()
    if kind < 0.2:
        return rng.choice(ITS_COMMANDS), works_with(option, name)
    if kind < 0.4 and option["choices"]:
        return rng.choice(ITS_CHOICES), can_be(option, name)
    return rng.choice(ITS_DEFAULT), default(name)


def works_with(option: dict, name: str) -> str:
    return f"{name} works with {option['commands'].replace(' ', ', ')}."


def can_be(option: dict, name: str) -> str:
    return f"{name} can be {option['choices'].replace('|', ', ')}."


def default_of_thing(rng: random.Random) -> tuple:
    """"What is the default port?" """
    topic, things = rng.choice(list(DEFAULT_OF.items()))
    return rng.choice(DEFAULT_THINGS).format(rng.choice(things)), default(topic), of_it(topic)


def and_default(rng: random.Random) -> tuple:
    while True:
        name = some_flag(rng)
        if len(named(name)) == 1:
            return rng.choice([*AND, "And of {}?", "And the default of {}?"]).format(name), default(name)


def option_questions(rng: random.Random) -> tuple:
    option, name = rng.choice(OPTIONS), some_flag(rng)
    where = rng.random()
    if where < 0.65:
        return flag_question(rng, name), meaning(name), of_it(name)
    if where < 0.73:
        return default_of_thing(rng)
    name, kind = long_name(option), rng.random()
    if len(named(name)) > 1:
        return flag_question(rng, name), meaning(name), AND_MEANING
    if kind < 0.45:
        return rng.choice(DEFAULT_QUESTIONS).format(name), default(name), and_default
    if kind < 0.6:
        return rng.choice(COMMAND_QUESTIONS).format(name), works_with(option, name), of_it(name)
    if kind < 0.75 and option["choices"]:
        return rng.choice(CHOICE_QUESTIONS[:2] + CHOICE_QUESTIONS[3:]).format(name), can_be(option, name), of_it(name)
    if kind < 0.88 and option["key"]:
        return rng.choice(KEY_QUESTIONS).format(name), f"The key of {name} is {option['key']}.", of_it(name)
    return rng.choice(FIND_FLAG).format(option["help"]), f"It is {name}.", of_it(name)


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
