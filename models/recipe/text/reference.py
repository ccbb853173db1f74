"""Turns that name the entries of a list by place: "and the second one?"."""

import random

from .chat import Conversation, Turn
from .clauses import COUNTRIES
from .lists import ANIMALS, FRUIT, VEGETABLES, lists
from .recall import key, value
from .words import CITIES, COLORS, DAYS, EVERYDAY, NAMES, THINGS, Redraw, any_word, distinct

ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth"]
SHORT_ORDINALS = ["1st", "2nd", "3rd", "4th", "5th", "6th"]
SHORT_SHARE = 0.15

# What a list is called, and what stands in it
HEADS = [("Here is my list", None), ("These are my things", None), ("My list", None), ("I have these items", None), ("Here is a list", None),
         ("A list", None), ("List", None), ("Items", None), ("Here are some words", None), ("Words", EVERYDAY), ("To do", EVERYDAY),
         ("Here are {n} items", None), ("{n} things", THINGS), ("Options", EVERYDAY), ("My options", COLORS), ("Choices", COLORS),
         ("Colors", COLORS), ("My favourite colors", COLORS), ("Cities", CITIES), ("Places to see", CITIES), ("Countries", COUNTRIES),
         ("Names", NAMES), ("The team", NAMES), ("Winners", NAMES), ("Guests", NAMES), ("Fruits", FRUIT), ("Shopping list", FRUIT + VEGETABLES),
         ("Shopping", VEGETABLES), ("Ingredients", VEGETABLES), ("Animals", ANIMALS), ("Pets", ANIMALS), ("Days", DAYS), ("Topics", EVERYDAY),
         ("Steps", EVERYDAY), ("Order", NAMES), ("Tools", THINGS)]
SAID = [("I bought {}.", FRUIT + VEGETABLES), ("We need {}.", FRUIT + VEGETABLES), ("I like {}.", FRUIT), ("I have {}.", None),
        ("My favourite colors are {}.", COLORS), ("My favorite colors are {}.", COLORS), ("The colors are {}.", COLORS),
        ("My options are {}.", EVERYDAY),
        ("You can choose {}.", COLORS), ("The winners are {}.", NAMES), ("My friends are {}.", NAMES), ("The runners came in as {}.", NAMES),
        ("We visited {}.", CITIES), ("The train stops in {}.", CITIES), ("I was in {}.", COUNTRIES), ("At the zoo we saw {}.", ANIMALS),
        ("My list is {}.", None), ("The list is {}.", None), ("There are {}.", None), ("On the table are {}.", THINGS), ("Pack {}.", THINGS),
        ("Remember {}.", None), ("The words are {}.", EVERYDAY), ("The steps are {}.", EVERYDAY)]
COUNTS = {3: "three", 4: "four", 5: "five", 6: "six"}
CODE_HEADS = ["Here are some codes", "These are my codes", "Codes", "Keep these values", "My keys", "Here are the values"]
WANTED = ["What is the {} item?", "Which one is {}?", "What comes {}?", "Name the {} one.", "What is the {} one?", "Which is the {}?",
          "Which is the {} one?", "What was the {} one?", "Tell me the {} one.", "The {} one?", "What is {} on it?", "What is the {}?",
          "Which comes {}?", "Give me the {} item."]
WANTED_CODES = ["What is the {} code?", "Which is the {} code?", "Tell me the {} one.", "What is the {} one?", "What is the {} value?"]
FOLLOW = ["{} the {} one?", "{} the {}?", "{} what about the {} one?", "{} what is the {} one?", "{} the {} one, please.",
          "{} tell me the {} one.", "{} which is the {}?", "{} I also need the {} one."]
JOINTS = ["And", "and", "Now", "OK, and", "Thanks, and", "Then", "Good, and", "Next:", "Well,", "Also:", "Yes, and", "Fine. And"]
ALONE = ["What is the {} one?", "Which is the {}?", "Which is the {} one?", "What is the {}?", "The {} one?", "Which one is {}?",
         "What was the {} one?", "What about the {} one?", "Tell me the {} one.", "Give me the {} one.", "Name the {} one."]  # without a joint


def place_of(rng: random.Random, i: int, count: int) -> tuple:
    """The entry's place, as the answer and as the question say it."""
    place = "last" if i == count - 1 and rng.random() < 0.5 else ORDINALS[i]
    return place, SHORT_ORDINALS[i] if place != "last" and rng.random() < SHORT_SHARE else place


def follow_up(rng: random.Random, shown: str) -> str:
    return rng.choice(FOLLOW).format(rng.choice(JOINTS), shown) if rng.random() < 0.6 else rng.choice(ALONE).format(shown)


def asked_after(rng: random.Random, turns: list, answers: list, first, count: int) -> list:
    """So many turns behind `turns` that ask for entries, each once; `first` writes the question of the first where nothing came before."""
    left = list(range(len(answers)))
    for _ in range(count):

        def ask() -> tuple:
            i = rng.choice(left)
            place, shown = place_of(rng, i, len(answers))
            return first(shown) if first and not turns else follow_up(rng, shown), i, place

        asked, i, place = rng.user(ask)
        left.remove(i)
        turns += [Turn("user", asked), Turn("assistant", answers[i].replace("{}", place), f"The {place} is entry {i + 1}.")]
    return turns


def of_codes(rng: random.Random) -> list:
    items = distinct(rng, rng.randint(3, 6), lambda r: any_word(r) if r.random() < 0.7 else key(r))
    values = [value(rng) for _ in items]
    mark = rng.choice((" ", ": ", ": ")) if all(" " not in k + v for k, v in zip(items, values)) else ": "
    listing = rng.choice(("\n", "; ", ", ")).join(f"{k}{mark}{v}" for k, v in zip(items, values))
    answers = [f"The code of {k} is {v}." for k, v in zip(items, values)]

    def first(shown: str) -> str:
        return f"{rng.choice(CODE_HEADS)}:{rng.choice((' ', chr(10)))}{listing}\n{rng.choice(WANTED_CODES).format(shown)}"

    return asked_after(rng, [], answers, first, rng.randint(2, min(4, len(items))))


def items_of(rng: random.Random, pool: list | None, count: int) -> list:
    if pool is not None and rng.random() < 0.75:
        return distinct(rng, count, lambda r: r.choice(pool))
    return distinct(rng, count, lambda r: any_word(r) if r.random() < 0.7 else key(r))


def of_items(rng: random.Random) -> list:
    count = rng.randint(3, 6)
    in_a_sentence = rng.random() < 0.4
    head, pool = rng.choice(SAID if in_a_sentence else HEADS)
    items = items_of(rng, pool, count)
    if in_a_sentence:
        listing = ", ".join(items) if rng.random() < 0.3 else ", ".join(items[:-1]) + rng.choice((" and ", " and ", ", and ")) + items[-1]
        text = head.format(listing) + rng.choice((" ", " ", "\n"))
    else:
        listing = rng.choice((", ", ", ", "\n", "; ", " ") if not any(" " in item for item in items) else (", ", "\n", "; ")).join(items)
        end = rng.choice(("\n", "\n", ". ", ". ")) if "\n" not in listing else "\n"
        text = f"{head.format(n=COUNTS[count]).capitalize()}:{rng.choice((' ', chr(10)))}{listing}{end}"

    def first(shown: str) -> str:
        return text + rng.choice(WANTED).format(shown)

    return asked_after(rng, [], [f"The {{}} one is {k}." for k in items], first, rng.randint(2, min(4, count)))


def of_a_result(rng: random.Random) -> list:
    """Of what the answer before says: a list that was sorted, turned around or copied."""
    turns = lists(rng, ("sort", "sort", "down", "reverse", "copy")).turns
    items = turns[-1].content.split(", ")
    if not 3 <= len(items) <= len(ORDINALS):
        raise Redraw
    return asked_after(rng, turns, [f"The {{}} one is {k}." for k in items], None, rng.randint(1, 2))


def reference(rng: random.Random) -> Conversation:
    kind = rng.random()
    turns = of_codes(rng) if kind < 0.3 else of_items(rng) if kind < 0.8 else of_a_result(rng)
    return Conversation("reference", turns, thinking=rng.random() < 0.6)
