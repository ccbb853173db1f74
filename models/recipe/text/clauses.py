"""Texts of records for extraction.py, put together from clauses in random order, so that a value ends where it ends
and not at a place that a template has.

    text, values = composed(rng)      # "Call Ida Blum at 555-0172, she is from Gent." {"name": "Ida Blum", ...}
"""

import random
import string

from .words import ADJECTIVES, COLORS, DAYS, FRUITS, NOUNS, any_word, city, digits, distinct, new_name, new_word, person, pseudo_word, surname

JOBS = """baker teacher nurse plumber driver lawyer painter clerk cook farmer judge tailor waiter dentist gardener pilot singer
carpenter chemist doctor""".split()
COUNTRIES = """Argentina Austria Belgium Brazil Canada Chile China Cuba Denmark Egypt Finland France Germany Greece Iceland India Ireland Italy
Japan Kenya Mexico Norway Peru Poland Portugal Spain Sweden Turkey Uganda Vietnam""".split()
TOPICS = ["the budget", "the new roof", "the contract", "the invoice", "the trip", "the exam", "the plans", "the report", "the garden", "the party"]

# A sentence that names the subject, then what else is said of it: in the first person, in the third, or as notes.
CONTACT = {
    "I": (["I am {name}", "my name is {name}", "this is {name}", "{name} here", "call me {name}", "it is {name} again", "I'm {name}",
           "you may call me {name}", "my full name is {name}", "I am called {name}", "{name} is my name", "here is {name}",
           "this is {name} from {company}", "hi, this is {name} from {company}", "hi, I'm {name} from {city}",
           "my name is {name} and I work at {company}",
           "my name is {name} and I come from {city}", "I'm {name}, {age}, from {city}", "{name} speaking", "{name} from {company} here",
           "good morning, {name} here", "the name is {name}", "it's {name} from {company}", "I'm {name}, a {job} at {company}",
           "I am {name}, {job} at {company}"],
          ["from {city}", "I live in {city}", "living in {city}", "my home is {city}", "at home in {city}", "I moved to {city}",
           "I come from {city}", "I am {age}", "{age} years old", "I am {age} years old", "aged {age}", "I turned {age}", "my age is {age}",
           "my phone is {phone}", "call me at {phone}", "reach me at {phone}", "phone {phone}", "my number is {phone}", "ring me on {phone}",
           "you can call {phone}", "I answer at {phone}", "mail me at {email}", "my mail is {email}", "{email}", "write to {email}",
           "my address is {email}", "reach me under {email}", "email {email}", "mail goes to {email}", "I work at {company}", "I am with {company}",
           "working for {company}", "{company} is my employer", "I work as a {job}", "I am a {job}", "my job is {job}", "a {job} by trade",
           "room {room}", "my room is {room}", "you find me in room {room}", "I sit in room {room}",
           "you can reach me at {phone}", "you can reach me at {email}", "you can reach me at {phone} or {email}", "I can be reached at {phone}",
           "I can be reached under {email}", "best call me on {phone}", "drop me a line at {email}", "send it to {email}",
           "my email address is {email}",
           "my cell is {phone}", "I work as a {job} at {company}", "I'm a {job} at {company}", "I'm based in {city}", "I'm calling from {city}",
           "I am originally from {city}", "I'm {age}", "just turned {age}", "my office is room {room}", "I have worked at {company} for years"]),
    "they": (["call {name}", "please call {name}", "contact {name}", "ask for {name}", "the customer is {name}", "we met {name}", "write to {name}",
              "there is {name}", "I spoke with {name}", "our new colleague is {name}", "our new colleague {name}", "my friend {name}",
              "our customer {name}", "my neighbour {name}",
              "the new {job}, {name}", "her brother {name}", "my boss {name}", "our guest {name}", "Mr {name}", "Mrs {name}", "Dr. {name}",
              "a {job} called {name}", "remember {name}", "{name} called",
              "{name} wrote to us", "{name} asks for help", "call {name} at {phone}", "please call {name} at {phone}", "ring {name} on {phone}",
              "phone {name} under {phone}", "mail {name} at {email}", "write to {name} at {email}", "contact {name} ({email})", "{name} ({age})",
              "{name} ({phone})", "{name} from {city}", "{name} of {company}", "{name} lives in {city}", "{name} is {age}",
              "{name} is {age} years old", "{name} works at {company}", "{name} works as a {job}", "the number of {name} is {phone}",
              "{name}'s number is {phone}", "{name}'s mail is {email}", "the mail of {name} is {email}", "{phone} is the number of {name}",
              "{email} belongs to {name}", "at {company} ask for {name}", "in {city} we met {name}", "you reach {name} at {phone}",
              "you reach {name} at {phone} or {email}", "{name} sits in room {room}", "the {job} {name}",
              "call {name} at {phone} or write to {email}", "{name} comes from {city}", "{name} works as a {job} at {company}",
              "{name} is a {job} at {company}",
              "{name} is a {job} from {city}", "{name}, {age}, {job}, {city}", "{name}, {age}, {job}", "{name}, {job}, {city}",
              "{name}, {age}, {city}",
              "{name} ({age}), {job}", "a {age}-year-old {job} named {name}", "{age}-year-old {name} works at {company}", "{name} joined {company}",
              "{name} moved to {city}", "{name} can be reached at {phone}", "{name} can be reached at {email}", "you can reach {name} under {email}",
              "{name}, who works at {company}", "{company} has hired {name}", "{name} was born in {city}", "{name} of {company}, {phone}",
              "meet {name}, our new {job}", "{name} is the {job} of {company}", "{name} - {phone} - {email}", "{name}, {company}, {phone}, {email}",
              "{name} <{email}>", "for {name} at {company}"],
             ["from {city}", "lives in {city}", "living in {city}", "who lives in {city}", "the city is {city}", "is {age}", "{age} years old",
              "aged {age}", "who is {age}", "phone {phone}", "the phone is {phone}", "at {phone}", "call {phone}", "the number is {phone}",
              "tel. {phone}", "email {email}", "{email}", "the mail is {email}", "mail goes to {email}", "write to {email}", "works at {company}",
              "who works for {company}", "of {company}", "the company is {company}", "works as a {job}", "a {job}", "who is a {job}",
              "a {job} by trade", "room {room}", "in room {room}", "sits in room {room}", "comes from {city}", "who comes from {city}",
              "originally from {city}", "works as a {job} at {company}", "is a {job} at {company}", "employed at {company}", "has the number {phone}",
              "can be reached at {phone}", "can be reached at {email}", "reachable under {email}", "turned {age}", "who turned {age}",
              "works for {company}",
              "earns a living as a {job}", "grew up in {city}"]),
    "notes": (["name {name}", "name: {name}", "{name}", "contact: {name}", "customer {name}", "Mr or Mrs {name}", "from: {name}", "guest {name}"],
              ["{phone}", "phone {phone}", "phone: {phone}", "tel {phone}", "{email}", "mail {email}", "mail: {email}", "town {city}",
               "city {city}", "city: {city}", "from {city}", "{age} years", "age {age}", "age: {age}", "company {company}", "company: {company}",
               "works at {company}", "job {job}", "{job}", "job: {job}", "room {room}", "room: {room}", "{city}", "{age}", "{company}", "<{email}>",
               "({age})",
               "employer: {company}", "profession: {job}", "from: {city}"]),
}
MEETING = (["we meet", "meet me", "there is a meeting", "let us meet", "the meeting is", "we have a talk", "please come", "dinner",
            "an appointment", "lunch", "meet {name}", "a talk with {name}", "{name} comes", "see {name}", "the visit of {name}"],
           ["on {day}", "{day}", "this {day}", "at {time}", "at {time} sharp", "{time}", "from {time} on", "in {city}", "at our office in {city}",
            "in room {room}", "room {room}", "about {topic}", "to talk about {topic}", "because of {topic}", "with {name}", "together with {name}",
            "call {phone}", "questions to {email}", "{name} will be there"])
ORDER = (["please send {quantity} {item}", "we need {quantity} {item}", "I order {quantity} {item}", "{quantity} {item}",
          "I would like {quantity} {item}", "{name} orders {quantity} {item}", "deliver {quantity} {item}", "order {number}: {quantity} {item}",
          "{name} wants {quantity} {item}", "send {name} {quantity} {item}"],
         ["for {price} euros", "at {price} euros", "the price is {price} euros", "{price} euros", "for ${price}", "at €{price}",
          "it costs ${price}", "for {price} €",
          "that makes €{price}", "the price is ${price}", "{price} dollars", "for £{price} in all", "by {day}", "on {day}", "before {day}",
          "to {city}", "delivery to {city}", "the address is in {city}", "order {number}", "the order number is {number}", "number {number}",
          "for {name}", "the customer is {name}", "call {phone}", "my phone is {phone}", "the bill goes to {email}", "invoice to {email}"])
CHATTER = ["see you soon", "it is urgent", "thanks a lot", "no hurry", "as we said", "do not forget", "I hope all is well", "best wishes",
           "that is all", "as always", "if you have time", "sorry for the delay", "it is important", "more later"]
LEADS = ["", "", "", "", "", "Hi, ", "Hello! ", "Note: ", "Reminder: ", "Dear all, ", "PS: ", "Hello, ", "FYI: "]
FIELDS = "name phone email city age company job room day time topic quantity item price number".split()
# Other names of a field: whichever is asked for is the key.
ALIASES = {"phone": ["phone", "phone", "phone", "tel", "telephone", "phone_number"], "email": ["email", "email", "email", "mail", "e-mail"],
           "city": ["city", "city", "town", "place"], "company": ["company", "company", "employer"], "job": ["job", "job", "profession",
                                                                                                             "occupation"],
           "name": ["name", "name", "name", "name", "person", "full_name"], "day": ["day", "day", "weekday"]}

OF_COUNTRY = ["country", "country", "country", "from", "origin"]


def full_name(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        return person(rng)
    return f"{person(rng)} {surname(rng)}" if kind < 0.92 else f"{person(rng)} {person(rng)} {surname(rng)}"


def phone_number(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return digits(rng, rng.randint(5, 10))
    if kind < 0.6:
        return f"{digits(rng, 3)}-{digits(rng, 4)}"
    if kind < 0.75:
        return f"+{rng.randint(1, 99)} {digits(rng, rng.randint(2, 3))} {digits(rng, rng.randint(5, 7))}"
    return "0" + digits(rng, 3) + rng.choice("/- ") + digits(rng, rng.randint(4, 7))


def mail_address(rng: random.Random, name: str) -> str:
    parts = name.lower().replace("'", "").split()
    kind = rng.random()
    user = (parts[0] if kind < 0.3 else ".".join(parts) if kind < 0.5 else parts[0][0] + parts[-1] if kind < 0.6 else new_word(rng) if kind < 0.8 else
            pseudo_word(rng) + digits(rng, rng.randint(1, 3)) if kind < 0.9 else rng.choice(("info", "mail", "office", "hello", "me", "post")))
    host = parts[-1] if rng.random() < 0.25 else rng.choice(NOUNS) if rng.random() < 0.4 else new_word(rng)
    return f"{user}@{host}.{rng.choice(('com', 'org', 'net', 'de', 'io', 'se', 'fr', 'co', 'eu', 'it'))}"


def company(rng: random.Random) -> str:
    ending = rng.choice(("", "", " Ltd", " Ltd", " Inc", " GmbH", " & Co", " and Sons", " Works", " Systems", " " + new_name(rng)))
    return (f"{rng.choice(ADJECTIVES + COLORS).capitalize()} {rng.choice(NOUNS).capitalize()}" if rng.random() < 0.4 else new_name(rng)) + ending


def values_of(rng: random.Random) -> dict:
    name = full_name(rng)
    place = rng.choice(COUNTRIES) if rng.random() < 0.12 else city(rng)
    return {"name": name, "phone": phone_number(rng), "email": mail_address(rng, name), "city": place, "age": rng.randint(18, 95),
            "company": company(rng), "job": rng.choice(JOBS),
            "room": rng.randint(1, 499),
            "day": rng.choice(DAYS), "time": f"{rng.randint(0, 23):02}:{rng.choice(('00', '05', '15', '30', '45', '50'))}",
            "topic": rng.choice(TOPICS),
            "quantity": rng.randint(2, 200), "item": rng.choice(FRUITS) if rng.random() < 0.4 else any_word(rng) + "s",
            "price": rng.randint(1, 999) if rng.random() < 0.7 else float(f"{rng.randint(1, 99)}.{rng.randint(0, 9)}{rng.randint(1, 9)}"),
            "number": int("1" + digits(rng, 4))}


def named_in(clause: str) -> list:
    return [field for _, field, _, _ in string.Formatter().parse(clause) if field]


MARKS = {"sentences": (". ", ". ", ", ", " and "), "one sentence": (", ", ", ", ", ", " and "), "notes": ("; ", "; ", "\n", " - ", ". ")}


def joined(rng: random.Random, clauses: list, values: dict) -> str:
    """As sentences, as one or as notes; a capital only where a sentence begins with a word of ours."""
    style, text = rng.choices(list(MARKS), (0.4, 0.4, 0.2))[0], ""
    for i, clause in enumerate(clauses):
        mark = rng.choice(MARKS[style]) if i else ""
        if mark in ("", ". ", "\n") and not clause.startswith("{") and rng.random() < 0.85:
            clause = clause[0].upper() + clause[1:]
        text += mark + clause.format(**values)
    return text + rng.choice((".", ".", ".", "", "!"))


def composed(rng: random.Random) -> tuple:
    """(text, {field: value} of what is in it)."""
    values, kind = values_of(rng), rng.random()
    heads, more = CONTACT[rng.choice(("I", "they", "they", "notes"))] if kind < 0.65 else MEETING if kind < 0.82 else ORDER
    clauses = [rng.choice(heads)]
    known = named_in(clauses[0])
    for clause in distinct(rng, rng.randint(1, 9), lambda r: r.choice(more)):
        if not set(named_in(clause)) & set(known) and len(clauses) < 6:
            known += named_in(clause)
            clauses.append(clause)
    if rng.random() < 0.15:
        clauses.append(rng.choice(CHATTER))
    # Mostly the subject comes first, as people write; sometimes anything does.
    first, rest = (clauses[:1], clauses[1:]) if rng.random() < 0.75 else ([], clauses)
    rng.shuffle(rest)
    return rng.choice(LEADS) + joined(rng, first + rest, values), {field: values[field] for field in known}


def composed_request(rng: random.Random) -> tuple:
    """(text, the fields to ask for, {field: value}): some of what is there, now and then what is not."""
    while True:
        text, values = composed(rng)
        if values:
            break
    known = list(values)
    fields = rng.sample(known, rng.randint(1, len(known)))
    if rng.random() < 0.3:
        fields += distinct(rng, rng.randint(1, 2),
                           lambda r: r.choice([f for f in FIELDS if f not in values and not (f == "number" and "phone" in values)]))
    rng.shuffle(fields)
    keys = [rng.choice(OF_COUNTRY if values.get(field) in COUNTRIES else ALIASES.get(field, [field])) for field in fields]
    return text, keys, {key: values.get(field) for key, field in zip(keys, fields)}
