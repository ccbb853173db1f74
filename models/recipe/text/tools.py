"""Choosing a function from a list, calling it, and using its result."""

import json
import random

from .chat import Conversation, Turn
from .words import CITIES, COLORS, DAYS, LANGUAGES, NAMES, NOUNS, ROOMS, THINGS, any_word, digits, pseudo_word

# name: (description, {parameter: (type, description)}, questions, result fields, answer)
TOOLS = {
    "get_weather": ("Weather of a city", {"city": ("string", "name of the city")},
                    ["What is the weather in {city}?", "Is it warm in {city}?", "Weather for {city}, please.", "How is it outside in {city}?"],
                    {"sky": "sky", "degrees": "degrees"}, "In {city} it is {sky} at {degrees} degrees."),
    "set_timer": ("Starts a timer", {"minutes": ("integer", "length in minutes")},
                  ["Set a timer for {minutes} minutes.", "Wake me in {minutes} minutes.", "Start a timer: {minutes} minutes.", "Timer {minutes} minutes"],
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
                  ["Add {title} on {day} at {time} to my calendar.", "Put {title} in the calendar: {day}, {time}.", "New event {title}, {day} {time}"],
                  {"id": "number"}, "I added {title} on {day} at {time} with the number {id}."),
    "find_route": ("Distance between two cities", {"start": ("string", "first city"), "goal": ("string", "second city")},
                   ["How far is it from {start} to {goal}?", "Find a route from {start} to {goal}.", "What is the distance between {start} and {goal}?"],
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

NOTHING_FITS = Turn("assistant", "I have no function for that.", "No function fits.")


def argument(rng: random.Random, tool: str, name: str) -> object:
    c = rng.choice
    if name in ("city", "start", "goal"):
        return c(CITIES)
    if name in ("minutes", "level", "people"):
        return rng.randint(2, {"minutes": 180, "level": 100, "people": 20}[name])
    if name == "amount":
        return rng.randint(2, 2000)
    if tool == "convert_units":
        return c(UNITS)
    if name in ("name", "to"):
        return c(NAMES)
    simple = {"room": ROOMS, "day": DAYS, "language": LANGUAGES, "color": COLORS}
    if name in simple:
        return c(simple[name])
    if name == "article":
        return c(THINGS)
    if name == "time":
        return f"{rng.randint(0, 23):02}:{c(('00', '10', '15', '20', '30', '40', '45', '50'))}"
    if name in ("path", "folder"):
        path = "/".join(rng.choice((c(NOUNS), c(THINGS), pseudo_word(rng))) for _ in range(rng.randint(1, 3)))
        return path + ("." + c(("txt", "md", "log")) if name == "path" else "")
    if name == "ending":
        return c(("txt", "md", "log", "csv", "json", "toml"))
    return " ".join(any_word(rng) for _ in range(rng.randint(1, 2 if name in ("query", "title") else 5)))


def result_value(rng: random.Random, kind: str) -> object:
    if kind == "true":
        return True
    if kind == "sky":
        return rng.choice(["sunny", "cloudy", "rainy", "foggy", "snowy", "windy"])
    if kind == "words":
        return " ".join(any_word(rng) for _ in range(rng.randint(1, 4)))
    return {"degrees": rng.randint(-15, 38), "number": rng.randint(1, 9999), "small": rng.randint(1, 60), "digits": digits(rng, 7)}[kind]


def schema(name: str) -> dict:
    description, parameters, *_ = TOOLS[name]
    return {"type": "function", "function": {
        "name": name, "description": description, "parameters": {
            "type": "object",
            "properties": {p: {"type": t, "description": d} for p, (t, d) in parameters.items()},
            "required": list(parameters)}}}


def request(rng: random.Random, name: str) -> tuple:
    _, parameters, questions, results, answer = TOOLS[name]
    arguments = {p: argument(rng, name, p) for p in parameters}
    while len(set(map(str, arguments.values()))) < len(arguments):
        arguments = {p: argument(rng, name, p) for p in parameters}
    result = {r: result_value(rng, kind) for r, kind in results.items()}
    asked = rng.choice(ASIDES) + rng.choice(questions).format(**arguments)
    return asked, arguments, json.dumps(result), answer.format(**arguments, **result)


def mixed_requests(rng: random.Random) -> Conversation:
    """One to three requests with results, of which many fit no function: to learn when not to call."""
    offered = rng.sample(list(TOOLS), rng.randint(1, 5))
    others = [t for t in TOOLS if t not in offered]
    turns = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        fits = rng.random() < 0.55
        name = rng.choice(offered if fits else others)
        asked, arguments, result, answer = request(rng, name)
        turns.append(Turn("user", asked))
        if not fits:
            turns.append(NOTHING_FITS)
            continue
        turns.append(Turn("assistant", "", f"Call {name}.", [(name, arguments)]))
        if rng.random() < 0.3:
            break
        turns += [Turn("tool", result), Turn("assistant", answer, "Use the result.")]
    return Conversation("tools", turns, tools=[schema(t) for t in offered], thinking=rng.random() < 0.6)


def tools(rng: random.Random, focus: bool = False) -> Conversation:
    if focus and rng.random() < 0.7:
        return mixed_requests(rng)
    offered = rng.sample(list(TOOLS), rng.randint(1, 5))
    thinking = rng.random() < 0.6
    kind = rng.random()
    if kind < 0.1:  # nothing fits
        other = rng.choice([t for t in TOOLS if t not in offered])
        asked = request(rng, other)[0]
        return Conversation("tools", [Turn("user", asked), NOTHING_FITS], tools=[schema(t) for t in offered], thinking=thinking)
    turns = []
    for _ in range(1 if kind < 0.8 else 2):
        name = rng.choice(offered)
        asked, arguments, result, answer = request(rng, name)
        turns += [Turn("user", asked), Turn("assistant", "", f"Call {name}.", [(name, arguments)])]
        if kind < 0.45:
            break
        turns += [Turn("tool", result), Turn("assistant", answer, "Use the result.")]
    return Conversation("tools", turns, tools=[schema(t) for t in offered], thinking=thinking)
