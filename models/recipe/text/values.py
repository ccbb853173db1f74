"""Values of the catalog's parameters and results: about half as people say them, the others made up, so that they are read and copied.

    value = draw_value(rng, "city")        # "Lisbon", "New Kraill"; of "low/high" one of the two; numbers as int
"""

import random
from pathlib import Path

from .clauses import full_name, mail_address, phone_number
from .words import ADJECTIVES, COLORS, DAYS, EVERYDAY, FRUITS, LETTERS, NOUNS, ROOMS, THINGS, any_word, city, code, digits, new_name, new_word, person


def _lists() -> dict:
    lines = (Path(__file__).parent / "catalog_values.txt").read_text().splitlines()
    pairs = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    return {kind: rest.split(" | ") for kind, rest in pairs}


LISTS = _lists()
CLOSED = ("month", "code_text", "program_language")  # nobody makes up one of these
FROM_LIST = 0.55
SENTENCES = ("text", "title", "query", "event", "task", "problem", "scene")
CURRENCIES = "USD EUR GBP JPY CHF CAD AUD SEK NOK DKK PLN CZK INR CNY BRL dollars euros pounds yen francs rupees crowns pesos".split()
UNITS = """meters feet miles km grams pounds liters gallons inches ounces kilograms yards tons centimeters millimeters hours minutes seconds
knots acres hectares cups pints degrees bytes kilobytes""".split()
MONTHS = LISTS["month"]
SKIES = ["sunny", "cloudy", "rainy", "foggy", "snowy", "windy", "clear", "stormy"]
NUMBERS = {"small": (1, 20), "minutes": (1, 120), "amount": (1, 2000), "big": (1000, 500000), "percent": (0, 100), "degrees": (5, 120),
           "number": (1, 9999), "year": (1950, 2027), "five": (1, 5), "temperature": (-15, 38)}
ENDINGS = ("txt", "md", "log", "csv", "json", "pdf", "py", "png", "html", "toml", "yaml", "docx")


# What people write to each other and complain of, with {w} a thing, {a} what it is like, {p} a person, {c} a city, {r} a room
NOTES = ["See you at {t}", "I will be there at {t}", "Call me when you are in {c}", "The {w} is {a}", "Bring the {w} with you",
         "We need {n} more {f}",
         "{p} is in the {r}", "Do not forget the {w}", "I will be {n} minutes late", "Lunch at {t}?", "Tell {p} about the {w}",
         "Your {w} has arrived",
         "Where is the {w}?", "Thanks for the {f}", "The {w} of {p} is {a} today", "Let us meet in {c} on {d}", "I am in {c} until {d}",
         "{p} cannot come on {d}",
         "We have {n} {f} left", "Can you bring {n} {f}?", "The {w} costs {n} euros", "It is in the {r}", "Please clean the {r}", "See you in {c}",
         "Happy birthday, {p}!", "I have sold the {w}", "No {f} today", "The {r} smells of {f}", "{p} says hello", "Running late, sorry",
         "On my way to {c}"]
COMPLAINTS = ["{w} in the {r} is broken", "The {w} is {a}", "the {w} on floor {n} does not work", "{w} on floor {n} is broken", "Cannot open the {w}",
              "no {f} in the {r} since {d}", "{w} makes noise", "{p} cannot log in", "The {w} in {c} does not answer", "{w} leaks",
              "room {n} is too cold",
              "Light in the {r} flickers", "{w} stopped at {t}", "The {w} of {p} is lost", "Wrong price of the {w}", "{w} {n} keeps restarting",
              "password of {p} has expired", "the {r} window does not close", "{w} is missing since {d}", "Error {n} when opening {w}",
              "{w} too slow"]
NOTE_SHARE = 0.4


def note(rng: random.Random, templates: list) -> str:
    return rng.choice(templates).format(
        w=rng.choice(THINGS) if rng.random() < 0.5 else rng.choice(LISTS["device"]) if rng.random() < 0.7 else new_word(rng),
        a=rng.choice(ADJECTIVES),
        p=person(rng), c=city(rng), r=rng.choice(ROOMS), t=time(rng), n=rng.randint(2, 60), f=rng.choice(FRUITS), d=rng.choice(DAYS))


def phrase(rng: random.Random, kind: str) -> str:
    """A few words that nobody wrote before."""
    if kind in ("text", "problem") and rng.random() < NOTE_SHARE:
        return note(rng, COMPLAINTS if kind == "problem" else NOTES)
    words = [any_word(rng) if rng.random() < 0.8 else rng.choice(EVERYDAY) for _ in range(rng.randint(1, 5 if kind == "text" else 3))]
    if rng.random() < 0.12:
        words[-1] = code(rng)
    text = " ".join(words)
    return text[0].upper() + text[1:] if rng.random() < 0.3 else text


def file_path(rng: random.Random, endings: tuple) -> str:
    folders = [rng.choice((rng.choice(NOUNS), rng.choice(EVERYDAY), new_word(rng))) for _ in range(rng.choice((0, 0, 1, 1, 2, 3)))]
    name = rng.choice((rng.choice(EVERYDAY), new_word(rng), f"{rng.choice(EVERYDAY)}_{rng.randint(1, 99)}", rng.choice(NOUNS)))
    ending = f".{rng.choice(endings)}" if endings else ""
    return ("/" if folders and rng.random() < 0.35 else "") + "/".join([*folders, name + ending])


def date(rng: random.Random) -> str:
    kind, day = rng.random(), rng.randint(1, 28)
    if kind < 0.3:
        return rng.choice(DAYS)
    if kind < 0.45:
        return rng.choice(("tomorrow", "today", "next week", f"next {rng.choice(DAYS)}"))
    if kind < 0.65:
        return f"{rng.randint(2024, 2029)}-{rng.randint(1, 12):02}-{day:02}"
    return f"{rng.choice(MONTHS)} {day}" if kind < 0.88 else f"{day} {rng.choice(MONTHS)}" if kind < 0.95 else f"{day}.{rng.randint(1, 12)}."


def time(rng: random.Random) -> str:
    hour, minute = rng.randint(0, 23), rng.choice(("00", "00", "05", "10", "15", "20", "30", "30", "40", "45", "50"))
    kind = rng.random()
    if kind < 0.65:
        return f"{hour:02}:{minute}"
    half = rng.choice(("am", "pm"))
    if kind < 0.9:
        return f"{hour % 12 + 1}{rng.choice(('', ' '))}{half}"
    return rng.choice(("noon", "midnight", f"{hour}:{minute}"))


def identifier(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return digits(rng, rng.randint(2, 6))
    if kind < 0.75:
        return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 4))).upper() + rng.choice(("-", "-", "")) + digits(rng, rng.randint(1, 5))
    return "#" + digits(rng, rng.randint(2, 5)) if kind < 0.8 else code(rng)


def web_host(rng: random.Random) -> str:
    name = rng.choice(EVERYDAY) if rng.random() < 0.5 else new_word(rng)
    return f"{rng.choice(('', '', '', 'www.', 'shop.', 'api.'))}{name}.{rng.choice(('com', 'org', 'net', 'de', 'io', 'fr'))}"


def url(rng: random.Random) -> str:
    path = file_path(rng, () if rng.random() < 0.6 else ENDINGS).lstrip("/") if rng.random() < 0.6 else ""
    return rng.choice(("https://", "https://", "http://", "")) + web_host(rng) + ("/" + path if path else "")


def ticker(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(2, 5))).upper()


def invented(rng: random.Random, kind: str) -> str:
    """Of the form that the kind's list has."""
    if kind in SENTENCES:
        return phrase(rng, kind)
    like = rng.choice(LISTS[kind])
    if kind == "ticker":
        return ticker(rng)
    if kind == "domain":
        return web_host(rng)
    if kind == "address":
        return f"{rng.randint(1, 300)} {new_name(rng)} {rng.choice(('Street', 'Road', 'Lane', 'Avenue', 'Square'))}"
    if like[0].isupper():
        return new_name(rng) if rng.random() < 0.75 else f"{new_name(rng)} {new_name(rng)}"
    if kind in ("service", "namespace", "repo", "branch", "host", "database", "package", "table", "column", "environment"):
        mark = rng.random()
        word = rng.choice(EVERYDAY) if rng.random() < 0.5 else new_word(rng)
        return f"{word}-{rng.choice(EVERYDAY)}" if mark < 0.2 else f"{word}_{rng.choice(EVERYDAY)}" if mark < 0.3 else \
            f"{word}{rng.choice(('-', ''))}{rng.randint(1, 99)}" if mark < 0.45 else word
    return rng.choice(NOUNS) if rng.random() < 0.3 else rng.choice(EVERYDAY) if rng.random() < 0.4 else new_word(rng)


def statement(rng: random.Random) -> str:
    """Of SQL, in either case."""
    table, column = (rng.choice(LISTS["table"]) if rng.random() < 0.5 else new_word(rng), rng.choice(EVERYDAY))
    kind = rng.random()
    if kind < 0.2:
        text = rng.choice((f"DELETE FROM {table}", f"UPDATE {table} SET {column} = {rng.randint(0, 99)}", f"SELECT DISTINCT {column} FROM {table}"))
    else:
        text = f"SELECT {rng.choice(('*', '*', column, f'count({column})', f'{column}, {rng.choice(EVERYDAY)}'))} FROM {table}"
    if rng.random() < 0.3:
        text += f" WHERE {rng.choice(EVERYDAY)} {rng.choice('=<>')} {rng.randint(0, 999)}"
    if kind > 0.5:
        text += rng.choice((f" LIMIT {rng.randint(1, 99)}", f" ORDER BY {column}"))
    return text.lower() if rng.random() < 0.4 else text


def version(rng: random.Random) -> str:
    return rng.choice(("", "", "v")) + ".".join(str(rng.randint(0, 20)) for _ in range(rng.choice((2, 3, 3))))


def town(rng: random.Random) -> str:
    """A city, now and then with its state or country."""
    if rng.random() > 0.07:
        return city(rng)
    state = rng.choice(LISTS["country"]) if rng.random() < 0.4 else "".join(rng.choice(LETTERS) for _ in range(2)).upper()
    return f"{city(rng)}, {state}"


MADE = {
    "city": town, "person": person, "full": full_name, "date": date, "time": time, "id": identifier, "url": url, "phone": phone_number,
    "email": lambda r: mail_address(r, full_name(r)), "file": lambda r: file_path(r, ENDINGS), "path": lambda r: file_path(r, ()),
    "archive": lambda r: file_path(r, ("zip", "tar.gz", "tar", "7z")), "code": code,
    "ip": lambda r: ".".join(str(r.randint(1, 254)) for _ in range(4)),
    "currency": lambda r: r.choice(CURRENCIES), "unit": lambda r: r.choice(UNITS), "color": lambda r: r.choice(COLORS),
    "sql": lambda r: r.choice(LISTS["sql"]) if r.random() < 0.2 else statement(r), "version": version,
    "username": lambda r: person(r).lower() + (digits(r, r.randint(1, 2)) if r.random() < 0.3 else ""),
    "account": lambda r: r.choice(("savings", "checking", "my savings account")) if r.random() < 0.2 else identifier(r),
    "flight": lambda r: "".join(r.choice(LETTERS) for _ in range(2)).upper() + r.choice(("", "", " ")) + digits(r, r.randint(2, 4)),
    "sky": lambda r: r.choice(SKIES) if r.random() < 0.7 else new_word(r),
    "words": lambda r: r.choice(LISTS["text"]) if r.random() < 0.4 else phrase(r, "title"),
    "list": lambda r: [any_word(r) for _ in range(r.randint(1, 4))], "score": lambda r: f"{r.randint(0, 9)}:{r.randint(0, 9)}",
    "price": lambda r: r.randint(1, 3000) if r.random() < 0.5 else float(f"{r.randint(1, 900)}.{r.randint(0, 9)}{r.randint(1, 9)}"),
    "true": lambda r: True}


def draw_value(rng: random.Random, kind: str) -> object:
    if kind in NUMBERS:
        return rng.randint(*NUMBERS[kind])
    if kind in MADE:
        return MADE[kind](rng)
    return rng.choice(LISTS[kind]) if kind in CLOSED or rng.random() < FROM_LIST else invented(rng, kind)
