"""Choosing a function from a list, calling it, and using its result.

Half of the functions are those of TOOLS, often under other names; the others are made up (open_tools.py).
"""

import json
import random
from dataclasses import dataclass
from typing import Callable

from .chat import Conversation, Turn
from .open_tools import open_tool, topics_like
from .outside import outside
from .words import COLORS, DAYS, EVERYDAY, LANGUAGES, NOUNS, ROOMS, THINGS, Asked, any_word, city, code, digits, new_word, person

# name: (description, {parameter: (type, description)}, questions, result fields, answer)
TOOLS = {
    "get_weather": ("Weather of a city", {"city": ("string", "name of the city")},
                    ["What is the weather in {city}?", "Is it warm in {city}?", "Weather for {city}, please.", "How is it outside in {city}?"],
                    {"sky": "sky", "degrees": "degrees"}, "In {city} it is {sky} at {degrees} degrees."),
    "set_timer": ("Starts a timer", {"minutes": ("integer", "length in minutes")},
                  ["Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start a timer: {minutes} minutes.",
                   "Timer {minutes} minutes"],
                  {"timer": "number"}, "Timer {timer} runs for {minutes} minutes."),
    "send_message": ("Sends a message to a person", {"to": ("string", "who gets it"), "text": ("string", "what it says")},
                     ["Send {to} the message: {text}", "Tell {to}: {text}", "Write to {to}: {text}", "Message {to} with the text {text}"],
                     {"sent": "true"}, "I sent the message to {to}."),
    "convert_units": ("Converts an amount from one unit to another",
                      {"amount": ("number", "how much"), "from": ("string", "unit of the amount"), "to": ("string", "wanted unit")},
                      ["Convert {amount} {from} to {to}.", "How many {to} are {amount} {from}?", "What is {amount} {from} in {to}?"],
                      {"result": "number"}, "{amount} {from} are {result} {to}."),
    "get_stock": ("Number of pieces of an article in the store", {"article": ("string", "name of the article")},
                  ["How many pieces of {article} are in stock?", "Do we have {article} in stock?", "Check the stock of {article}."],
                  {"pieces": "number"}, "There are {pieces} pieces of {article} in stock."),
    "set_light": ("Sets the light of a room", {"room": ("string", "which room"), "level": ("integer", "0 to 100")},
                  ["Set the light in the {room} to {level}.", "Make the light of the {room} {level} percent.", "Light {room} {level}"],
                  {"ok": "true"}, "The light in the {room} is at {level}."),
    "add_event": ("Adds an event to the calendar",
                  {"title": ("string", "what it is"), "day": ("string", "day of the week"), "time": ("string", "hh:mm")},
                  ["Add {title} on {day} at {time} to my calendar.", "Put {title} in the calendar: {day}, {time}.",
                   "New event {title}, {day} {time}"],
                  {"id": "number"}, "I added {title} on {day} at {time} with the number {id}."),
    "find_route": ("Distance between two cities", {"start": ("string", "first city"), "goal": ("string", "second city")},
                   ["How far is it from {start} to {goal}?", "Find a route from {start} to {goal}.",
                    "What is the distance between {start} and {goal}?"],
                   {"km": "number"}, "From {start} to {goal} it is {km} km."),
    "read_file": ("Reads a text file", {"path": ("string", "path of the file")},
                  ["What is in the file {path}?", "Read {path}.", "Show me {path}.", "Open the file {path}."],
                  {"text": "words"}, "The file {path} says: {text}"),
    "search_notes": ("Searches the notes", {"query": ("string", "what to look for")},
                     ["Search my notes for {query}.", "Look for {query} in my notes.", "Which notes mention {query}?"],
                     {"found": "small", "title": "words"}, "{found} notes mention {query}, the best is: {title}"),
    "book_table": ("Books a table", {"name": ("string", "guest"), "people": ("integer", "how many"), "time": ("string", "hh:mm")},
                   ["Book a table for {people} at {time} for {name}.", "Reserve a table: {name}, {people} people, {time}.",
                    "{name} wants a table for {people} people at {time}."],
                   {"table": "small"}, "Table {table} is booked for {name} at {time}."),
    "get_price": ("Price of an article in euros", {"article": ("string", "name of the article"), "color": ("string", "color")},
                  ["What does a {color} {article} cost?", "Price of the {article} in {color}?", "How much is the {color} {article}?"],
                  {"euros": "number"}, "The {color} {article} costs {euros} euros."),
    "translate_text": ("Translates a text", {"text": ("string", "what to translate"), "language": ("string", "target language")},
                       ["Translate {text} to {language}.", "How do you say {text} in {language}?", "Put {text} into {language}."],
                       {"translation": "words"}, "In {language} it is: {translation}"),
    "play_song": ("Plays a song", {"title": ("string", "name of the song")},
                  ["Play the song {title}.", "I want to hear {title}.", "Put on {title}."],
                  {"seconds": "number"}, "{title} plays for {seconds} seconds."),
    "get_contact": ("Phone number of a person", {"name": ("string", "who")},
                    ["What is the phone number of {name}?", "How can I call {name}?", "Give me the number of {name}."],
                    {"phone": "digits"}, "The number of {name} is {phone}."),
    "count_files": ("Counts the files in a folder", {"folder": ("string", "path"), "ending": ("string", "file ending")},
                    ["How many {ending} files are in {folder}?", "Count the {ending} files in {folder}."],
                    {"count": "number"}, "There are {count} {ending} files in {folder}."),
}
UNITS = ["meters", "feet", "miles", "km", "grams", "pounds", "liters", "gallons", "inches", "ounces"]
ASIDES = ["", "", "", "Please. ", "Hello! ", "Hi, ", "Could you do this: ", "A task for you. ", "Now: "]

NOTHING_FITS = "I have no function for that."
# Other names of parameters, as other programs have them.
SYNONYMS = {"city": ["location", "place", "town", "where"], "minutes": ["length", "duration", "time_in_minutes"], "to": ["recipient", "person"],
            "text": ["message", "body", "content", "words"], "amount": ["value", "number", "quantity"], "article": ["item", "product", "name"],
            "room": ["where", "place"], "level": ["brightness", "percent"], "title": ["name", "label", "what"], "day": ["weekday", "date"],
            "time": ["at", "hour", "when"], "start": ["from", "origin", "source"], "goal": ["to", "destination", "target"],
            "path": ["file", "filename", "file_path"], "query": ["q", "search", "term"], "name": ["person", "who", "guest"],
            "people": ["guests", "count", "seats"], "color": ["colour", "tint"], "language": ["target_language", "lang"],
            "folder": ["directory", "path"], "ending": ["extension", "suffix"]}
MEANINGS = ["{}", "{}.", "A function: {}", "Use it for this: {}", "{} now"]


@dataclass
class Tool:
    name: str
    topic: str  # verb and noun; two tools of one topic are not told apart
    schema: dict
    request: Callable  # what a user says, the topic in these words, the arguments, the result as text, the answer that uses it


def value_of(rng: random.Random, tool: str, name: str) -> object:
    c = rng.choice
    if name in ("city", "start", "goal"):
        return city(rng)
    if name in ("minutes", "level", "people"):
        return rng.randint(2, {"minutes": 180, "level": 100, "people": 20}[name])
    if name == "amount":
        return rng.randint(2, 2000)
    if tool == "convert_units":
        return c(UNITS) if rng.random() < 0.7 else new_word(rng) + "s"
    if name in ("name", "to"):
        return person(rng)
    simple = {"room": ROOMS, "day": DAYS, "language": LANGUAGES, "color": COLORS}
    if name in simple:
        return c(simple[name]) if rng.random() < 0.7 or name == "day" else new_word(rng)
    if name == "article":
        return c(THINGS) if rng.random() < 0.5 else any_word(rng)
    if name == "time":
        return f"{rng.randint(0, 23):02}:{c(('00', '10', '15', '20', '30', '40', '45', '50'))}"
    if name in ("path", "folder"):
        path = "/".join(rng.choice((c(NOUNS), c(THINGS), new_word(rng), new_word(rng))) for _ in range(rng.randint(1, 3)))
        return path + ("." + c(("txt", "md", "log")) if name == "path" else "")
    if name == "ending":
        return c(("txt", "md", "log", "csv", "json", "toml"))
    return " ".join(any_word(rng) if rng.random() < 0.9 else code(rng) for _ in range(rng.randint(1, 2 if name in ("query", "title") else 5)))


def result_value(rng: random.Random, kind: str) -> object:
    if kind == "true":
        return True
    if kind == "sky":
        return rng.choice(["sunny", "cloudy", "rainy", "foggy", "snowy", "windy"]) if rng.random() < 0.7 else new_word(rng)
    if kind == "words":
        return " ".join(any_word(rng) for _ in range(rng.randint(1, 4)))
    return {"degrees": rng.randint(-15, 38), "number": rng.randint(1, 9999), "small": rng.randint(1, 60), "digits": digits(rng, 7)}[kind]


def schema(name: str, description: str, parameters: dict) -> dict:
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {
            "type": "object",
            "properties": {p: {"type": t, "description": d} for p, (t, d) in parameters.items()},
            "required": list(parameters)}}}


def restyled(rng: random.Random, key: str) -> str:
    """get_weather, getWeather, weather_get, my_get_weather, ..."""
    verb, noun = key.split("_")
    return rng.choice((f"{verb}{noun.capitalize()}", f"{noun}_{verb}", f"{rng.choice(NOUNS)}_{verb}_{noun}", f"{verb}_{noun}_{rng.randint(2, 9)}",
                       f"{verb.capitalize()}{noun.capitalize()}", f"{verb}-{noun}", f"{verb}_the_{noun}", noun, f"{noun}_now", f"current_{noun}",
                       f"{noun}_service", f"do_{noun}", f"{rng.choice(EVERYDAY)}.{noun}"))


def known_tool(rng: random.Random, key: str | None = None) -> Tool:
    key = key or rng.choice(list(TOOLS))
    description, parameters, questions, results, answer = TOOLS[key]
    shown = {p: p for p in parameters}
    if rng.random() < 0.4:
        renamed = {p: rng.choice(SYNONYMS[p]) if p in SYNONYMS and rng.random() < 0.7 else p for p in parameters}
        shown = renamed if len(set(renamed.values())) == len(renamed) else shown
        description = rng.choice(MEANINGS).format(description)

    def request(rng: random.Random) -> tuple:
        values = {p: value_of(rng, key, p) for p in parameters}
        while len(set(map(str, values.values()))) < len(values):
            values = {p: value_of(rng, key, p) for p in parameters}
        result = {r: result_value(rng, kind) for r, kind in results.items()}
        asked = rng.choice(questions).format(**values)
        return asked, topic, {shown[p]: v for p, v in values.items()}, json.dumps(result, ensure_ascii=False), answer.format(**values, **result)

    name, topic = key if rng.random() < 0.6 else restyled(rng, key), key.replace("_", " ")
    return Tool(name, topic, schema(name, description, {shown[p]: about for p, about in parameters.items()}), request)


def any_tool(rng: random.Random, near: list = ()) -> Tool:
    """`near`: topics of which a made-up function may share half, so that the other half must be read."""
    if rng.random() < 0.4:
        return known_tool(rng)
    name, topic, description, parameters, request = open_tool(rng, list(near))
    return Tool(name, topic, schema(name, description, parameters), request)


def several(rng: random.Random, count: int, taken: list) -> list:
    """Tools of different names and topics, none of a topic in `taken`, however it is said."""
    found: list = []
    while len(found) < count:
        topics = taken + [t.topic for t in found]
        tool = any_tool(rng, topics if rng.random() < 0.4 else ())
        if all(topic not in topics for topic in topics_like(tool.topic)) and all(tool.name != t.name for t in found):
            found.append(tool)
    return found


def offered_tools(rng: random.Random) -> list:
    return several(rng, rng.choice((1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 6, 7, 8)), [])


def looked_through(offered: list, chosen: Tool | None) -> str:
    """Name by name until one fits: which name stands before a description that fits is hard to see at once."""
    names = [tool.name for tool in offered]
    if chosen is None:
        return "".join(f"{name}: no. " for name in names)
    return "".join(f"{name}: no. " for name in names[:names.index(chosen.name)]) + f"{chosen.name}: yes."


def tools(rng: random.Random, unfit: float = 0.2) -> Conversation:
    """One or two requests with calls, results and answers; the share `unfit` of them fits no function.

    What is wanted is said first, thinking or not: in one form whatever the request's wording and the functions' names,
    it is then found by going through them name by name."""
    offered = offered_tools(rng)
    thinking = rng.random() < 0.65
    turns: list = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        fits, elsewhere = rng.random() >= unfit, rng.random() < 0.35
        tool = rng.choice(offered) if fits else several(rng, 1, [t.topic for t in offered])[0]

        def ask() -> tuple:
            if not fits and elsewhere:
                return outside(rng, tool_like=False), None, None, None, None
            asked, *rest = tool.request(rng)
            return Asked(rng.choice(ASIDES) + asked, asked), *rest

        asked, topic, arguments, result, answer = rng.user(ask)
        turns.append(Turn("user", asked))
        wanted = f"{topic}. {looked_through(offered, tool if fits else None)}"
        thought, said = (f"Wanted: {wanted}", f"You want: {wanted}") if result else ("", "")
        if fits:
            turns += [Turn("assistant", "" if thinking else said.strip(), thought, [(tool.name, arguments)]), Turn("tool", result),
                      Turn("assistant", answer, "Use the result.")]
        else:
            turns.append(Turn("assistant", ("" if thinking else said) + NOTHING_FITS, f"{thought}No function fits."))
    return Conversation("tools", turns, tools=[t.schema for t in offered], thinking=thinking)
