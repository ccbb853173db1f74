"""A few plain sentences and a question about one of them; the answer is the sentence that says it, or that none does.

    facts(rng)      # "Anna's office is room 12. Rex is 7 years old. Where does Anna sit?" "Anna's office is room 12."

A relation has ways to say it, what it is called, and questions for its value and for whose it is. The ways of a relation
mean the same, and no relation follows from another, so one sentence answers or none.
"""

import random

from .asked import casual
from .chat import Conversation, Turn
from .clauses import JOBS, phone_number
from .words import (ADJECTIVES, COLORS, DAYS, EVERYDAY, FRUITS, LANGUAGES, NOUNS, THINGS, Asked, city, code, fresh, new_name,
                    new_word, odd, person, surname)

ABSENT = "The text does not say."
ABSENT_SHARE = 0.2


def either(pool: list):
    """Of the list or made up, half and half."""
    return lambda rng: rng.choice(pool) if rng.random() < 0.5 else new_word(rng)


def who(rng: random.Random) -> str:
    return person(rng) if rng.random() < 0.7 else f"{person(rng)} {surname(rng)}"


def thing(rng: random.Random) -> str:
    word = either(NOUNS + THINGS)(rng)
    return f"the {rng.choice(ADJECTIVES)} {word}" if rng.random() < 0.3 else f"the {word}"


def team(rng: random.Random) -> str:
    kind = rng.random()
    return (new_name(rng) if kind < 0.4 else f"the {rng.choice(NOUNS)} team" if kind < 0.6 else f"the {rng.choice(NOUNS)} project" if kind < 0.8 else
            f"Project {new_name(rng)}")


def amount(most: int):
    return lambda rng: str(rng.randint(2, most))


def clock(rng: random.Random) -> str:
    return f"{rng.randint(1, 23)}:{rng.choice(('00', '15', '30', '45'))}"


def date(rng: random.Random) -> str:
    return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}"


def place(rng: random.Random) -> str:
    return f"{rng.choice(('in', 'under', 'behind', 'on', 'next to'))} the {either(NOUNS + THINGS)(rng)}"


MONTHS = "January February March April May June July August September October November December".split()
ROOMS = [f"room {n}" for n in range(1, 60)]
# subject, value, its name, ways to say it, questions for the value, questions for whose it is.
RELATIONS = [
    (who, lambda r: f"room {r.randint(1, 400)}", "{s}'s office", ["{s}'s office is {v}.", "{s} sits in {v}.", "The office of {s} is {v}."],
     ["Where is {s}'s office?", "Where does {s} sit?", "Which room is {s}'s office?", "In which room is {s}?", "What is {s}'s office?"],
     ["Whose office is {v}?", "Who sits in {v}?", "Who has {v}?"]),
    (who, city, "{s}'s home", ["{s} lives in {v}.", "{s}'s home is in {v}."],
     ["Where does {s} live?", "In which city does {s} live?", "Where is {s}'s home?", "What city does {s} live in?"],
     ["Who lives in {v}?", "Whose home is in {v}?"]),
    (who, either(JOBS), "{s}'s job", ["{s} is a {v} by trade.", "{s}'s job is {v}.", "{s} works as a {v}."],
     ["What is {s}'s job?", "What does {s} do for a living?", "What does {s} work as?", "Which job does {s} have?"],
     ["Who is a {v}?", "Who works as a {v}?"]),
    (who, amount(95), "{s}'s age", ["{s} is {v} years old.", "{s} is {v}.", "{s}'s age is {v}."],
     ["How old is {s}?", "What is {s}'s age?", "What age is {s}?"], ["Who is {v} years old?", "Whose age is {v}?"]),
    (who, phone_number, "{s}'s phone number", ["{s}'s phone number is {v}.", "You can call {s} at {v}.", "The number of {s} is {v}."],
     ["What is {s}'s phone number?", "How do I reach {s} by phone?", "Which number does {s} have?", "What number do I call for {s}?"],
     ["Whose number is {v}?"]),
    (who, either(LANGUAGES), "{s}'s language", ["{s} speaks {v}.", "{s}'s language is {v}."],
     ["Which language does {s} speak?", "What does {s} speak?", "What language does {s} know?"], ["Who speaks {v}?"]),
    (who, either(FRUITS), "what {s} likes", ["{s} likes {v}.", "{s} loves {v}.", "{s}'s favorite food is {v}."],
     ["What does {s} like?", "What is {s}'s favorite food?", "What does {s} like to eat?"], ["Who likes {v}?", "Who loves {v}?"]),
    (who, lambda r: new_name(r) if r.random() < 0.6 else r.choice(("Bello", "Rex", "Luna", "Max", "Minka", "Coco")), "{s}'s pet",
     ["{s}'s dog is called {v}.", "{s} has a dog called {v}.", "The name of {s}'s dog is {v}."],
     ["What is {s}'s dog called?", "What is the name of {s}'s dog?", "How is {s}'s dog called?"],
     ["Whose dog is {v}?", "Who has a dog called {v}?"]),
    (who, thing, "what {s} lost", ["{s} has lost {v}.", "{s} lost {v}."], ["What did {s} lose?", "What has {s} lost?"],
     ["Who lost {v}?", "Who has lost {v}?"]),
    (who, date, "{s}'s birthday", ["{s}'s birthday is {v}.", "{s} was born on {v}.", "The birthday of {s} is {v}."],
     ["When is {s}'s birthday?", "When was {s} born?", "On which day was {s} born?"], ["Who was born on {v}?", "Whose birthday is {v}?"]),
    (team, who, "the head of {s}", ["{v} leads {s}.", "The head of {s} is {v}.", "{s} is led by {v}."],
     ["Who leads {s}?", "Who is the head of {s}?", "Who is in charge of {s}?"], ["What does {v} lead?"]),
    (team, date, "the deadline of {s}", ["The deadline of {s} is {v}.", "{s} is due on {v}.", "{s} must be ready by {v}."],
     ["When is {s} due?", "What is the deadline of {s}?", "By when must {s} be ready?"], ["What is due on {v}?"]),
    (team, lambda r: f"{r.randint(2, 999)} euros" if r.random() < 0.7 else f"{r.randint(2, 99)} million euros", "the budget of {s}",
     ["The budget of {s} is {v}.", "{s} has a budget of {v}."],
     ["What is the budget of {s}?", "How big is the budget of {s}?", "How much may {s} spend?"], ["What has a budget of {v}?"]),
    (thing, lambda r: r.choice(COLORS) if r.random() < 0.7 else new_word(r), "the color of {s}", ["{s} is {v}.", "The color of {s} is {v}."],
     ["What color is {s}?", "What is the color of {s}?", "Which color does {s} have?"], ["What is {v}?", "Which thing is {v}?"]),
    (thing, lambda r: r.choice(("{} euros", "{} euros", "{} dollars", "${}", "€{}", "£{}", "{}€")).format(r.randint(2, 900)), "the price of {s}",
     ["{s} costs {v}.", "The price of {s} is {v}.", "You get {s} for {v}."],
     ["How much is {s}?", "What does {s} cost?", "What is the price of {s}?", "How much does {s} cost?"], ["What costs {v}?"]),
    (thing, place, "the place of {s}", ["{s} is {v}.", "You find {s} {v}.", "{s} lies {v}."],
     ["Where is {s}?", "Where do I find {s}?", "Where can {s} be found?"], ["What is {v}?", "What lies {v}?"]),
    (thing, who, "the owner of {s}", ["{s} belongs to {v}.", "{v} owns {s}.", "The owner of {s} is {v}."],
     ["Who owns {s}?", "Whose is {s}?", "Who is the owner of {s}?", "To whom does {s} belong?"], ["What does {v} own?", "What belongs to {v}?"]),
    (thing, lambda r: f"{r.randint(2, 900)} {r.choice(('grams', 'kilos', 'pounds'))}", "the weight of {s}",
     ["{s} weighs {v}.", "The weight of {s} is {v}."], ["How heavy is {s}?", "What does {s} weigh?", "How much does {s} weigh?"],
     ["What weighs {v}?"]),
    (lambda r: f"the {either('meeting party concert exam workshop dinner lesson talk game visit'.split())(r)}", clock, "the time of {s}",
     ["{s} starts at {v}.", "{s} begins at {v}.", "{s} is at {v}."],
     ["When does {s} start?", "At what time is {s}?", "When does {s} begin?", "What time is {s}?"], ["What starts at {v}?", "What is at {v}?"]),
    (lambda r: f"the {either('shop bank library museum market pool cinema bakery school'.split())(r)}", either(DAYS), "when {s} is closed",
     ["{s} is closed on {v}.", "On {v} {s} is closed.", "{s} does not open on {v}."],
     ["When is {s} closed?", "On which day is {s} closed?", "Which day is {s} closed?"], ["What is closed on {v}?"]),
    (lambda r: f"the {either('server router printer safe door gate cellar account vault'.split())(r)}",
     lambda r: odd(r) if r.random() < 0.3 else code(r), "the password of {s}",
     ["The password of {s} is {v}.", "{s} has the password {v}.", "Use {v} as the password of {s}."],
     ["What is the password of {s}?", "Which password does {s} have?", "What password does {s} need?"], ["What has the password {v}?"]),
    (lambda r: f"the {either('bus train ferry flight plane boat tram'.split())(r)} to {city(r)}", clock, "when {s} leaves",
     ["{s} leaves at {v}.", "{s} departs at {v}.", "At {v} {s} leaves."],
     ["When does {s} leave?", "At what time does {s} leave?", "When does {s} depart?"], ["What leaves at {v}?"]),
    (lambda r: new_name(r) if r.random() < 0.5 else city(r), lambda r: f"{r.randint(2, 990)},000", "the population of {s}",
     ["{s} has {v} inhabitants.", "The population of {s} is {v}.", "There are {v} people in {s}."],
     ["How many people live in {s}?", "What is the population of {s}?", "How many inhabitants does {s} have?"],
     ["Which town has {v} inhabitants?"]),
    # Whatever people have of each other: the name of it is open.
    (lambda r: f"{who(r)}'s {either(NOUNS + THINGS)(r)}", code, "the code of {s}", ["The code of {s} is {v}.", "{s} has the code {v}."],
     ["What is the code of {s}?", "Which code does {s} have?"], ["What has the code {v}?"]),
    (lambda r: f"the {either(EVERYDAY)(r)} of {new_name(r)}", lambda r: odd(r) if r.random() < 0.3 else fresh(r), "{s}",
     ["{s} is {v}.", "{v} is {s}."],
     ["What is {s}?", "What is {s}?", "Tell me {s}."], []),
]
INTROS = ["Text: ", "Read this: ", "Here is a text. ", "Context: ", "Notes: ", "Facts: ", "I tell you something. ", "Listen: "]
LEADS = ["Question: ", "Now: ", "So: ", "Tell me: ", "Please answer: ", "Q: "]
PAUSES = [" ", " ", " ", "\n", "\n\n", "\n\n"]


def sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def told(rng: random.Random, count: int) -> list:
    """Facts (relation, subject, value), no two of one relation with the same subject or value: few subjects of which much is
    said, or few relations of which many have one, so that neither alone finds the sentence."""
    relations = rng.sample(RELATIONS, rng.randint(1, count))
    cast: dict = {}
    found: list = []
    while len(found) < count:
        relation = rng.choice(relations)
        known = cast.setdefault(relation[0], [])
        subject = rng.choice(known) if known and rng.random() < 0.45 else relation[0](rng)
        value = relation[1](rng)
        if all(other[0] is not relation or subject != other[1] and value != other[2] for other in found):
            known.append(subject)
            found.append((relation, subject, value))
    return found


def clear(facts: list) -> bool:
    """Whether no name, thing or value is part of another one that plays another part: "Where is the lamp?" of two lamps."""
    names = {text.lower() for _, subject, value in facts for text in (subject, value)}
    said = [f" {text} ".replace("'s ", " ") for text in names]
    return not any(a != b and a in b for a in said for b in said)


def question_of(rng: random.Random, facts: list) -> tuple:
    """The question, what it looks for, the sentence's number or none."""
    number = rng.randint(0, len(facts) - 1)
    relation, subject, value = facts[number]
    inverse = bool(relation[5]) and rng.random() < 0.25
    if rng.random() < ABSENT_SHARE:
        # Another relation of the same subject, or the same relation of another one.
        others = [other for other in RELATIONS if other[0] is relation[0] and other is not relation]
        if others and not inverse and rng.random() < 0.5:
            relation = rng.choice(others)
        else:
            subject, value = relation[0](rng), relation[1](rng)
        if any(f[0] is relation and (f[1] == subject or f[2] == value) for f in facts) or not clear(facts + [(relation, subject, value)]):
            return question_of(rng, facts)
        number = None
    question = casual(rng, rng.choice(relation[5 if inverse else 4]).format(s=subject, v=value))
    wanted = value if inverse else relation[2].format(s=subject)
    # In the letters of the question: where no sentence has the name, its capitals are not known.
    return question, wanted.lower() if question.islower() else wanted, number


def facts(rng: random.Random) -> Conversation:
    found = told(rng, rng.randint(2, 8))
    while not clear(found):
        found = told(rng, rng.randint(2, 8))
    sentences = [sentence(rng.choice(relation[3]).format(s=subject, v=value)) for relation, subject, value in found]
    text = rng.choice((" ", " ", " ", "\n")).join(sentences)
    kept = "; ".join(sorted(f"{subject} {value}" for _, subject, value in found))
    turns: list = []

    def ask() -> tuple:
        question, wanted, number = question_of(rng, found)
        asked = question
        if not turns:
            asked = rng.choice(LEADS) + asked if rng.random() < 0.1 else asked
            intro = rng.choice(INTROS) if rng.random() < 0.12 else ""
            asked = (f"{asked}\n\n{intro}{text}" if rng.random() < 0.15 else f"{intro}{text}{rng.choice(PAUSES)}{asked}")
        return Asked(asked, f"{wanted}: {kept}"), wanted, number

    for _ in range(rng.choice((1, 1, 1, 2))):
        asked, wanted, number = rng.user(ask)
        answer, end = (ABSENT, " It is not there.") if number is None else (sentences[number], "")
        turns += [Turn("user", asked), Turn("assistant", answer, f"Look for {wanted}.{end}")]
    return Conversation("facts", turns, thinking=rng.random() < 0.5)
