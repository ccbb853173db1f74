"""Questions about options: what a flag does, its default, its values, the commands that take it.

options.tsv holds the flags as the program's own option table has them (read_options.py).
"""

import random
from pathlib import Path

from .frames import AND, and_one, ask
from .topics import FLAGS
from .unknown import unknown_flag

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
DEFAULT_THINGS = ["What is the default {}?", "What is the default {}?", "Which {} is the default?", "Default {}?",
                  "What {} does it use by default?", "The default {}?",
                  "Which {} is used if I say nothing?", "What {} do I get by default?", "Tell me the default {}.", "What is the standard {}?",
                  "default {}",
                  "Which {} does Tessera take by default?", "What is the usual {}?", "Do you know the default {}?", "What {} without a flag?"]
# After a question about an option: of the same one
ITS_DEFAULT = ["And the default?", "And its default?", "What is its default?", "And by default?", "Which default does it have?",
               "And if I leave it out?",
               "What if I do not give it?", "Default?", "And what is the default?", "What's the default value?", "And without it?",
               "What is it by default?",
               "And the default value?", "What does it default to?", "Default value?", "And if I do not set it?", "Does it have a default?",
               "And when I leave it out?",
               "What is used without it?", "The default?", "And the default of it?", "What would be the default?", "What about the default?",
               "How about the default?"]
ITS_COMMANDS = ["Which commands take it?", "And for which commands?", "With which commands?", "Where can I use it?", "Which commands know it?",
                "For which command is it?",
                "And which commands accept it?", "Does every command have it?", "Where does it work?", "And where does that work?",
                "In which commands?"]
ITS_CHOICES = ["Which values can it have?", "And which values?", "What can it be?", "What are the choices?", "Which values are allowed?",
               "What may I write after it?",
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
# Flags that the option table does not hold, since no file can set them.
GENERAL = [("--config", "PATH", "read this TOML file instead of the user's"), ("--print-config", "", "show every value with its origin, and end"),
           ("-h,--help", "", "show the options of a command")]


def load_options() -> list:
    lines = (Path(__file__).parent / "options.tsv").read_text().splitlines()
    columns = lines[0].split("\t")
    general = [dict(dict.fromkeys(columns, ""), flags=flags, value=value, help=text, commands=" ".join(COMMANDS)) for flags, value, text in GENERAL]
    return [dict(zip(columns, line.split("\t"))) for line in lines[1:]] + general


OPTIONS = load_options()
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


def _default_things() -> dict:
    """{flag with a default: what it sets, as "the default ..." can be asked of}"""
    found = {}
    for topic in FLAGS:
        if len(named(topic.head)) == 1 and named(topic.head)[0]["default"]:
            things = [thing.removeprefix("the ") for thing in topic.thing if len(thing.split()) < 5 and thing.split()[0] not in ASKING]
            found |= {topic.head: things} if things else {}
    return found


DEFAULT_OF = _default_things()


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
