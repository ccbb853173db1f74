"""Fields to JSON, and refusals of what the model was not trained for (outside.py)."""

import json
import random

from .asked import casual, phrased
from .chat import Conversation, Turn
from .clauses import composed_request
from .documents import Written, document_request
from .identity import greeting_turns
from .manual import questions
from .outside import outside
from .reasoning import unfit_sum
from .words import (Asked, COLORS, DAYS, FRUITS, THINGS, any_word, city, code, digits, distinct, email, fresh, new_name, new_word, odd, person,
                    surname)

RECORDS = {
    "person": (["{name} is {age} years old and lives in {city}. You can write to {email}.",
                "My name is {name}. I am {age}, I live in {city} and my address is {email}.", "Contact: {name}, {email}, {city}, aged {age}.",
                "We met {name} ({age}) from {city}; mail goes to {email}.",
                "In {city} there is a {age} year old called {name} with the mail {email}."],
               ["name", "age", "city", "email"]),
    "order": (["{name} orders {quantity} {item} for {cost}, to be delivered on {day}.",
               "Order {number}: {quantity} {item}, {cost}, customer {name}, delivery {day}.",
               "On {day} we bring {quantity} {item} to {name}. The price is {cost}, order {number}.",
               "Please send {name} {quantity} {item} by {day}. That makes {cost}."],
              ["name", "quantity", "item", "price", "day", "number"]),
    "product": (["The {product} costs {cost}.", "We sell the {product} for {cost}.", "Our {product} is {cost} now.", "{product}: {cost}",
                 "You get a {product} for {cost}.", "The price of the {product} is {cost}.", "A {color} {product} for {cost}.",
                 "The {color} {product} weighs {weight} grams and costs {cost}.", "For sale: {product}, {color}, {weight} g, {cost}.",
                 "Our {product} in {color} costs {cost}. Its weight is {weight} grams.",
                 "Article {number} is a {color} {product} of {weight} grams for {cost}."],
                ["product", "color", "weight", "price", "number"]),
    "trip": (["The train from {city} to {destination} leaves at {time}.", "Bus to {destination} from {city}, {time}",
              "{name} goes to {destination} on {day}.",
              "On {day} at {time} we drive from {city} to {destination}.", "{city} - {destination}, {day} {time}",
              "{name} travels from {city} to {destination} on {day} at {time}.",
              "Train to {destination}, leaving {city} on {day} at {time}, seat for {name}.",
              "On {day}, {name} flies from {city} to {destination}. Departure is at {time}.",
              "Ticket: {name}, {city} to {destination}, {day}, {time}."],
             ["name", "city", "destination", "day", "time"]),
}
OTHER_NAMES = {"city": ["from", "origin", "start"], "destination": ["to", "goal", "target"], "product": ["item", "article", "name"],
               "price": ["cost", "price"], "quantity": ["count", "amount", "number_of_items"], "item": ["product", "article"],
               "time": ["departure", "hour"]}
OTHER_SHARE = 0.3
ASKS = ["Extract {} as JSON: {}", "Give me {} from this text as JSON: {}", "Turn this into JSON with {}: {}",
        "{1}\n\nExtract the fields {0} to JSON.", "{1}\n\nWrite JSON with {0}.", "Text: {1}\nFields: {0}\nAnswer in JSON.", "JSON with {}: {}",
        "Extract {} from this as JSON.\n\n{}", "Find {} in this text and answer in JSON: {}", "{1}\n\nGive me {0} as JSON.",
        "I need {} as JSON from: {}", "Read this and write JSON with {}:\n{}", "{1}\nJSON with {0}, please.", "Please extract {} to JSON: {}",
        "Make JSON of {}: {}", "Parse this into JSON ({}): {}", "As JSON, {} of this text: {}", "Extract {} from: {}",
        "Extract {}: {}", "Get {} out of this: {}", "{1} -> JSON: {0}",
        "Return JSON with the fields {0}.\n\n{1}", "Read {0} from this text. Answer in JSON.\n\n{1}", "{1}\n\nReturn {0} in JSON format.",
        "What are {} here? Answer in JSON.\n{}", "Fields: {0}\nText: {1}", "Convert to JSON with the keys {0}:\n{1}", "Extract {} to JSON:\n{}",
        "Here is a text:\n{1}\n\nExtract {0} as JSON.", "{1}\n\nJSON, keys {0}.", "{1}\n\nExtract {0}.",
        "Extract as JSON: {}. {}", "As JSON: {}. {}", "Extract {} as JSON. {}", "JSON please, {}: {}", "Give me JSON with {}. {}",
        "Extract as JSON: {}\n{}"]
BLOCK_ASKS = ["Extract these fields as JSON:\n{0}\n\n{1}", "{1}\n\nGive me JSON with these keys:\n{0}",
              "Fill this in from the text as JSON:\n{0}\n\nText: {1}",
              "{1}\n\nAnswer in JSON with these fields:\n{0}", "Text: {1}\n\nReturn JSON:\n{0}",
              "JSON with the following fields:\n{0}\n\nText:\n{1}"]


COSTS = ["{price} euros"] * 5 + ["{price} dollars", "${price}", "${price}", "€{price}", "€{price}", "{price} €", "{price}€", "£{price}",
                                 "{price} EUR", "{price} USD",
                              "CHF {price}", "{price} pounds"]


def price(rng: random.Random) -> object:
    return rng.randint(1, 999) if rng.random() < 0.7 else float(f"{rng.randint(1, 99)}.{rng.randint(0, 9)}{rng.randint(1, 9)}")


def field_values(rng: random.Random) -> dict:
    name = person(rng)
    start, goal = distinct(rng, 2, city)
    many = rng.choice(FRUITS) if rng.random() < 0.4 else new_word(rng) + "s"
    return {"name": name if rng.random() < 0.4 else f"{name} {surname(rng)}", "age": rng.randint(18, 95),
            "city": start, "destination": goal, "email": email(rng, name), "quantity": rng.randint(2, 200),
            "item": many, "price": price(rng), "day": rng.choice(DAYS), "number": int("1" + digits(rng, 4)),
            "product": rng.choice(THINGS) if rng.random() < 0.4 else any_word(rng) if rng.random() < 0.6 else fresh(rng),
            "color": rng.choice(COLORS) if rng.random() < 0.7 else new_word(rng), "weight": rng.randint(10, 5000),
            "time": f"{rng.randint(0, 23):02}:{rng.choice(('00', '05', '15', '30', '45', '50'))}"}


FREE_FIELDS = "id owner status size place title model version group level note unit team brand street country kind".split()


def free_record(rng: random.Random) -> tuple:
    """A text of named values whose names and values are open: (text, {field: value})."""
    fields = distinct(rng, rng.randint(2, 5), lambda r: r.choice(FREE_FIELDS) if r.random() < 0.6 else new_word(r))
    values: dict = {}
    for field in fields:
        kind = rng.random()
        values[field] = (rng.randint(1, 9999) if kind < 0.28 else new_name(rng) if kind < 0.44 else code(rng) if kind < 0.62 else
                         odd(rng) if kind < 0.75 else
                         " ".join(any_word(rng) for _ in range(rng.randint(1, 3))))
        if isinstance(values[field], str) and values[field].isdecimal():
            values[field] = int("1" + values[field])
    style = rng.choice(("{}: {}", "{} = {}", "{} is {}", "the {} is {}", "{} {}"))
    if style == "{} {}" and any(isinstance(v, str) and " " in v for v in values.values()):
        style = "{}: {}"  # else nobody could say where a value ends and the next name begins
    return rng.choice((", ", "; ", "\n")).join(style.format(*pair) for pair in values.items()), values


def listing(rng: random.Random, fields: list) -> str:
    """The names of the fields in a sentence."""
    mark = rng.choice(("{}", "{}", "{}", "{}", "the {}", '"{}"', "`{}`", "\'{}\'"))
    names = [mark.format(field) for field in fields]
    if rng.random() < 0.05:
        return json.dumps(fields)
    return ", ".join(names) if len(names) < 2 or rng.random() < 0.6 else ", ".join(names[:-1]) + " and " + names[-1]


def block(rng: random.Random, fields: list) -> str:
    """Their names on lines of their own, or as the JSON to fill in."""
    kind = rng.random()
    if kind < 0.4:
        mark = rng.choice(("- ", "* ", ""))
        return "\n".join(mark + field for field in fields)
    hole = rng.choice(("...", '""', "null", '"..."'))
    return "{" + ", ".join(f"{json.dumps(field)}: {hole}" for field in fields) + "}" if kind < 0.8 else json.dumps(fields)


def as_json(values: dict) -> str:
    """Numbers stay as the text writes them."""
    written = {key: value if isinstance(value, Written) else json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return "{" + ", ".join(f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in written.items()) + "}"


def json_request(rng: random.Random) -> tuple:
    """The request, its fields, the answer."""
    kind = rng.random()
    if kind < 0.3:
        text, fields, values = composed_request(rng)
    elif kind < 0.6:
        text, fields, values = document_request(rng)
    elif kind < 0.76:
        text, values = free_record(rng)
        names = list(values)
        if rng.random() < 0.2:
            names.append(rng.choice([f for f in FREE_FIELDS if f not in values]))
        fields = rng.sample(names, rng.randint(2, len(names)))
    else:
        kind_of = rng.choice(list(RECORDS))
        texts, names = RECORDS[kind_of]
        template, values = rng.choice(texts).replace("{cost}", rng.choice(COSTS)), field_values(rng)
        text, values = template.format(**values), {f: values[f] for f in names if "{" + f + "}" in template}
        fields = rng.sample(names, rng.randint(2, len(names)))
        if kind_of != "person" and rng.random() < OTHER_SHARE:
            other = {f: rng.choice(OTHER_NAMES.get(f, [f])) for f in fields}
            if len({*other.values(), *fields}) == len({*fields}) + sum(f != o for f, o in other.items()):
                fields, values = list(other.values()), {other[f]: values.get(f) for f in fields}
    asks, named = (BLOCK_ASKS, block(rng, fields)) if rng.random() < 0.12 else (ASKS, listing(rng, fields))
    frame = rng.choice(asks)
    asked = (frame if frame.startswith("JSON") else casual(rng, frame)).format(named, text)
    return Asked(asked, f"{' '.join(sorted(fields))} {text}"), fields, as_json({f: values.get(f) for f in fields})


def extraction(rng: random.Random) -> Conversation:
    asked, fields, answer = rng.user(lambda: json_request(rng))
    return Conversation("json", [Turn("user", asked), Turn("assistant", answer, "Extract " + ", ".join(fields) + ".")],
                        thinking=rng.random() < 0.5)


REFUSAL = "I cannot do that. I was trained for a few tasks only: Tessera, recall, arithmetic, lists, JSON and tools."
SUM_REFUSAL = "I cannot compute that. I add, subtract and multiply two whole numbers that are not too long."


def refusal(rng: random.Random) -> Conversation:
    sums = rng.random() < 0.3
    asked = rng.user(lambda: unfit_sum(rng) if sums else phrased(rng, outside(rng)))
    thought, answer = ("I was not trained for this calculation.", SUM_REFUSAL) if sums else ("I was not trained for this.", REFUSAL)
    turns = [Turn("user", asked), Turn("assistant", answer, thought)]
    if rng.random() < 0.12:  # among questions that it does answer
        other = questions(rng, 1) if rng.random() < 0.7 else greeting_turns(rng)
        turns = other + turns if rng.random() < 0.6 else turns + other
    return Conversation("refusal", turns, thinking=rng.random() < 0.6)
