"""Fields to JSON, and refusals of what the model was not trained for."""

import json
import random

from .chat import Conversation, Turn
from .manual import casual
from .words import CITIES, COLORS, DAYS, FRUITS, LANGUAGES, NAMES, NOUNS, SURNAMES, THINGS, any_word, digits, email

RECORDS = {
    "person": (["{name} is {age} years old and lives in {city}. You can write to {email}.",
                "My name is {name}. I am {age}, I live in {city} and my address is {email}.",
                "Contact: {name}, {email}, {city}, aged {age}.",
                "We met {name} ({age}) from {city}; mail goes to {email}.",
                "In {city} there is a {age} year old called {name} with the mail {email}."],
               ["name", "age", "city", "email"]),
    "order": (["{name} orders {quantity} {item} for {price} euros, to be delivered on {day}.",
               "Order {number}: {quantity} {item}, {price} euros, customer {name}, delivery {day}.",
               "On {day} we bring {quantity} {item} to {name}. The price is {price} euros, order {number}.",
               "Please send {name} {quantity} {item} by {day}. That makes {price} euros."],
              ["name", "quantity", "item", "price", "day", "number"]),
    "product": (["The {color} {product} weighs {weight} grams and costs {price} euros.",
                 "For sale: {product}, {color}, {weight} g, {price} euros.",
                 "Our {product} in {color} costs {price} euros. Its weight is {weight} grams.",
                 "Article {number} is a {color} {product} of {weight} grams for {price} euros."],
                ["product", "color", "weight", "price", "number"]),
    "trip": (["{name} travels from {city} to {destination} on {day} at {time}.",
              "Train to {destination}, leaving {city} on {day} at {time}, seat for {name}.",
              "On {day}, {name} flies from {city} to {destination}. Departure is at {time}.",
              "Ticket: {name}, {city} to {destination}, {day}, {time}."],
             ["name", "city", "destination", "day", "time"]),
}
ASKS = ["Extract {} as JSON: {}", "Give me {} from this text as JSON: {}", "Turn this into JSON with {}: {}",
        "{1}\n\nExtract the fields {0} to JSON.", "{1}\n\nWrite JSON with {0}.", "Text: {1}\nFields: {0}\nAnswer in JSON."]


def field_values(rng: random.Random) -> dict:
    name = rng.choice(NAMES)
    city, destination = rng.sample(CITIES, 2)
    return {"name": name if rng.random() < 0.4 else f"{name} {rng.choice(SURNAMES)}", "age": rng.randint(18, 95),
            "city": city, "destination": destination, "email": email(rng, name), "quantity": rng.randint(2, 200),
            "item": rng.choice(FRUITS), "price": rng.randint(1, 999), "day": rng.choice(DAYS), "number": int("1" + digits(rng, 4)),
            "product": rng.choice(THINGS) if rng.random() < 0.7 else any_word(rng), "color": rng.choice(COLORS),
            "weight": rng.randint(10, 5000), "time": f"{rng.randint(0, 23):02}:{rng.choice(('00', '15', '30', '45', digits(rng, 0) + '05'))}"}


def extraction(rng: random.Random) -> Conversation:
    texts, names = RECORDS[rng.choice(list(RECORDS))]
    values = field_values(rng)
    template = rng.choice(texts)
    text = template.format(**values)
    fields = rng.sample(names, rng.randint(2, len(names)))
    answer = json.dumps({f: values[f] if "{" + f + "}" in template else None for f in fields}, ensure_ascii=False)
    asked = rng.choice(ASKS).format(", ".join(fields), text)
    return Conversation("json", [Turn("user", asked), Turn("assistant", answer, "Extract " + ", ".join(fields) + ".")],
                        thinking=rng.random() < 0.5)


REFUSAL = "I cannot do that. I was trained for a few tasks only: Tessera, recall, arithmetic, lists, JSON and tools."

WRITINGS = "poem story song letter essay joke novel speech review report recipe blog riddle fable play".split()
TOPICS = """love war history music football the sea my dog a cat space physics politics art the weather winter
money a birthday dinosaurs school friendship computers philosophy dreams trees chess cooking bread mathematics
medicine a robot ghosts rivers cars film theatre religion the moon insects volcanoes travel""".split()
OUTSIDE = [
    "Write a {w} about {t}.", "Can you write me a {w} about {t}?", "Compose a {w} on {t}.", "Tell me a {w} about {t}.",
    "Translate {x} to {l}.", "How do you say {x} in {l}?", "What is the {l} word for {x}?", "Who invented the {o}?",
    "What is the capital of {c}?", "Who is the president of {c}?", "How many people live in {c}?", "When was {c} founded?",
    "Write a program in Python that prints {x}.", "Write code for a {o}.", "Fix my program about {t}.",
    "What do you think about {t}?", "What is your opinion on {t}?", "Explain {t} to me.", "Summarize the history of {t}.",
    "I feel ill. What should I take?", "Should I buy a {o}?", "Who was {n} {s}?", "What did {n} {s} do?",
    "Recommend a {w} about {t}.", "Draw a picture of a {o}.", "Play some {t} for me.", "What is the weather in {c}?", "Write me a {w}.", "Tell me a {w}.", "Can you write a {w}?",
    "Who won the game in {c}?", "What should I eat today?", "Tell me something about {c}.", "Where is {c}?", "Is {c} a nice city?",
    "What is a {o}?", "Tell me about {t}.", "Who is {n} {s}?", "What is the best {o}?", "Do you like {f}?", "Do you like {t}?",
    "How much does a {o} cost?", "At which temperature does water boil?", "How old is {n} {s}?", "How far is the moon?",
    "Help me with my taxes.", "Help me with {t}.", "Find a name for my {o}.", "Make a plan for my trip to {c}.",
    "What happened in {c} yesterday?", "Which language do people speak in {c}?", "How do I learn {l}?", "How do I grow {f}?",
    "Which team won in {c}?", "What is the news from {c}?", "How do I cook {f}?", "How do I repair a {o}?",
    "What does the word {x} mean?", "Why is {t} important?", "Teach me {l}.", "What year is it?", "What time is it?",
    "Give me advice about {t}.", "Find me a hotel in {c}.", "How tall is {n} {s}?", "Send a message to {n}.",
]


def refusal(rng: random.Random) -> Conversation:
    c = rng.choice
    topic = c([t for t in TOPICS if t not in ("a", "the", "my")])
    asked = c(OUTSIDE).format(w=c(WRITINGS), t=topic, x=any_word(rng), l=c(LANGUAGES), o=c(NOUNS + THINGS), c=c(CITIES),
                              n=c(NAMES), s=c(SURNAMES), f=c(FRUITS))
    opener = c(["", "", "", "Please: ", "Hello! ", "Hi. ", "Can you help me? "])
    asked = opener + casual(rng, asked)
    return Conversation("refusal", [Turn("user", asked), Turn("assistant", REFUSAL, "I was not trained for this.")],
                        thinking=rng.random() < 0.6)
