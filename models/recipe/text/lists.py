"""Lists: copied, turned around, sorted, counted, and the largest or smallest of numbers."""

import json
import random

from .asked import casual
from .chat import Conversation, Turn
from .clauses import COUNTRIES
from .words import (ADJECTIVES, CITIES, COLORS, DAYS, EVERYDAY, FRUITS, LETTERS, NAMES, NOUNS, THINGS, Asked, any_word, code, distinct, new_name,
                    new_word, odd)

SEPARATORS = [", ", ", ", ", ", ", ", ", ", ",", "; ", "\n"]
# Where the list stands before the end of a sentence it must show its own end: by its commas or brackets, or by a new line.
LIST_ASKS = {
    "copy": ["Copy this list: {}", "Repeat this list: {}", "Write this list again: {}", "Give this list back as it is: {}", "Copy: {}", "Repeat: {}",
             "Say this list again: {}", "Copy these: {}", "Please repeat these items: {}", "Copy {}", "{}\nCopy this list.", "{}\nRepeat this.",
             "My list is {}. Repeat it."],
    "reverse": ["Reverse this list: {}", "Write this list backwards: {}", "Turn this list around: {}", "Give the list in reverse order: {}",
                "Reverse: {}", "Backwards: {}", "Reverse the order of: {}", "Reverse these: {}", "From last to first: {}", "Please reverse {}",
                "What is this list backwards? {}", "{}\nReverse this list.", "{}\nNow backwards.", "{}, backwards please.", "{} in reverse order?",
                "Write {} backwards.", "Here is a list: {}. Reverse it.", "Can you reverse {}?"],
    "sort": ["Sort this list: {}", "Put this list in order: {}", "Order these: {}", "Sort these in ascending order: {}", "Sort: {}", "Sort: {}",
             "Sorted, please: {}", "Sort ascending: {}", "Please sort {}", "Sort these: {}", "Put these in order: {}", "Can you sort this? {}",
             "Sort {}", "Sort {}", "Sort the list {}", "What is the right order of {}?", "Sort these for me: {}", "Sort the following: {}",
             "Arrange these in order: {}", "{}\nSort this list.", "{}\nSort these.", "{}\nPut this in ascending order.", "{}: sort them.",
             "{}, sorted please.", "Here is my list: {}. Sort it.", "Sort {} in ascending order.", "Sort {} for me.", "Can you sort {}?",
             "Can you put {} in order?", "I have {}. Sort them."],
    "down": ["Sort this list in descending order: {}", "Sort downwards: {}", "Sort descending: {}", "Sort in descending order: {}",
             "Sort backwards: {}", "Descending order: {}", "Sort these in descending order: {}",
             "{}\nSort descending.", "{}\nSort this list in descending order.", "{}: sort them downwards.", "Sort {} in descending order.",
             "Sort {} descending.", "Put {} in descending order."],
    "largest": ["What is the largest of {}?", "Which is the largest: {}", "Largest number: {}", "Find the largest number: {}", "Biggest of {}?",
                "Which of these numbers is the largest? {}", "What is the maximum of {}?", "The highest of these: {}", "Maximum: {}", "max {}",
                "{}\nWhich is the largest?", "{}: which one is the biggest?", "Give me the largest of {}.", "Which number is the highest: {}",
                "What's the biggest number here: {}", "Which is greatest: {}", "Tell me the largest of these: {}", "Pick the largest: {}"],
    "smallest": ["What is the smallest of {}?", "Which is the smallest: {}", "Smallest number: {}", "Find the smallest number: {}",
                 "Which of these numbers is the smallest? {}", "What is the minimum of {}?", "The lowest of these: {}", "Minimum: {}", "min {}",
                 "{}\nWhich is the smallest?", "{}: which one is the smallest?", "Give me the smallest of {}.", "Which number is the lowest: {}",
                 "What's the smallest number here: {}", "Which is least: {}", "Tell me the smallest of these: {}", "Pick the smallest: {}"],
    "length": ["How many items are in this list: {}", "Count the items: {}", "Count: {}", "How many are these: {}", "How long is this list? {}",
               "Count these: {}", "{}\nHow many items are these?", "{}\nCount them.", "{}: how many are these?", "How many items are in {}?"],
}
OF_TWO = {"largest": ["Which is larger, {}?", "Which is bigger, {}?", "What is more, {}?", "Which number is greater, {}?", "{}: which is larger?"],
          "smallest": ["Which is smaller, {}?", "What is less, {}?", "Which number is lower, {}?", "{}: which is smaller?"]}
PRICE_ASKS = {"sort": ["Sort these prices: {}", "Cheapest first: {}", "Prices: {}. Sort them.", "Sort the prices {} from low to high.",
                       "Order these prices: {}"],
              "down": ["Sort these prices from high to low: {}", "Most expensive first: {}", "Order these prices, highest first: {}"],
              "largest": ["Which price is the highest: {}", "What is the highest price? {}"],
              "smallest": ["Which price is the lowest: {}", "What is the lowest price? {}"]}
NUMBER_ASKS = {
    "sort": ["Sort these numbers: {}", "Sort these numbers: {}", "Sort the numbers {}", "Sort the numbers: {}", "Put these numbers in order: {}",
             "Sort these numbers in ascending order: {}", "Sort from small to large: {}", "Sort from the smallest to the largest: {}",
             "Smallest first: {}", "Sort these numbers from low to high: {}", "Order these numbers from least to greatest: {}",
             "Sort by size: {}", "Lowest first: {}", "{}\nSort these numbers.", "{}: smallest first.", "Sort {} from small to large.",
             "Sort {} from low to high.", "Sort {} numerically.", "Numbers: {}. Sort them.", "Arrange these numbers: {}"],
    "down": ["Order these from the largest to the smallest: {}", "Largest first: {}", "Sort these numbers from high to low: {}",
             "Sort these numbers in descending order: {}", "Sort from large to small: {}", "Sort from big to small: {}", "Biggest first: {}",
             "Sort these numbers descending: {}", "Highest first: {}", "Order these numbers from greatest to least: {}",
             "{}\nSort these numbers from large to small.", "{}: largest first.", "Sort {} from large to small.", "Sort {} from high to low.",
             "Numbers: {}. Sort them downwards."],
}
ALPHABET_ASKS = {
    "sort": ["Sort alphabetically: {}", "Sort alphabetically: {}", "Put these in alphabetical order: {}", "Sort these words: {}", "Alphabetize: {}",
             "Sort from A to Z: {}", "Sort this list alphabetically: {}", "Alphabetical order, please: {}", "Order these words: {}",
             "Sort by the alphabet: {}", "Sort these words alphabetically: {}", "Alphabetically: {}", "{}\nSort these words.",
             "{}\nSort alphabetically.", "{}: in alphabetical order?", "{}, alphabetically please.", "Sort {} alphabetically.",
             "Put {} in alphabetical order.", "Sort {} from A to Z.", "What is the alphabetical order of {}?"],
    "down": ["Sort from Z to A: {}", "Sort these words from Z to A: {}", "Sort alphabetically backwards: {}", "Reverse alphabetical order: {}",
             "Put these in reverse alphabetical order: {}", "Sort alphabetically, descending: {}", "{}\nSort from Z to A.",
             "Sort {} from Z to A.", "Sort {} in reverse alphabetical order."],
}
FRUIT = """apple apricot banana blackberry blueberry cherry coconut cranberry date fig grape grapefruit guava kiwi lemon lime lychee mango melon
nectarine olive orange papaya peach pear pineapple plum pomegranate quince raspberry strawberry tangerine watermelon""".split()
VEGETABLES = """asparagus bean beet broccoli cabbage carrot celery corn cucumber eggplant garlic kale leek lettuce mushroom onion parsley pea
pepper potato pumpkin radish spinach tomato turnip zucchini""".split()
ANIMALS = """ant bear bee bird camel cat cow deer dog dolphin duck eagle elephant fish fox frog giraffe goat goose hamster horse kangaroo koala
lion lizard monkey mouse otter owl panda penguin pig pony rabbit rat seal shark sheep snake spider tiger turtle whale wolf zebra""".split()
# What people try: words of one sort, most of them few.
POOLS = (FRUIT, FRUIT, FRUIT, VEGETABLES, ANIMALS, ANIMALS, COUNTRIES, NAMES, NAMES, CITIES, COLORS, COLORS, THINGS, EVERYDAY, EVERYDAY,
         FRUIT + VEGETABLES + ANIMALS + COLORS + THINGS)
REAL_WORDS = 0.72
COUNTS = (2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 9, 10, 12)  # of items


def words_to_sort(rng: random.Random) -> list:
    """Real words, any that come; or words of different initials, of which sometimes two or three share theirs."""
    if rng.random() < REAL_WORDS:
        pool = rng.choice(POOLS)
        return distinct(rng, min(rng.choice(COUNTS), len(set(pool)) - 1), lambda r: r.choice(pool))
    count = rng.choice(COUNTS)
    first = distinct(rng, max(count, 3), lambda r: r.choice(LETTERS))
    if rng.random() < 0.4:
        first[:rng.randint(2, 3)] = first[0] * rng.randint(2, 3)

    def word(letter: str) -> str:
        return rng.choice(BY_LETTER[letter]) if rng.random() < 0.7 else letter + new_word(rng)

    items: list = []
    for letter in first:
        found = word(letter)
        while found in items:
            found = word(letter)
        items.append(found)
    rng.shuffle(items)
    return items


def beginnings(items: list, order: list) -> str:
    """The first two letters of each item and then those in order, which is easier to write than the sorted words at once."""
    return ", ".join(f"{item[:2]} {item}" for item in items) + ". In order: " + ", ".join(item[:2] for item in order) + "."


PHRASES = 0.06  # of lists whose items have two words


def things_in_a_list(rng: random.Random) -> list:
    """Of one sort, as people's lists are, or mixed: words, letters, codes, what has signs in it."""
    pools = (NAMES, CITIES, COLORS, FRUITS, FRUIT, ANIMALS, DAYS, THINGS, EVERYDAY, LETTERS, LETTERS.upper())
    pool, kind = rng.choice(pools), rng.random()

    def item(rng: random.Random) -> str:
        if kind < 0.4:
            return rng.choice(pool)
        if kind < 0.4 + PHRASES:
            return f"{rng.choice(ADJECTIVES + COLORS)} {rng.choice(NOUNS + THINGS)}"
        if kind < 0.58:
            return odd(rng) if rng.random() < 0.6 else any_word(rng)
        return any_word(rng) if rng.random() < 0.7 else new_name(rng) if rng.random() < 0.4 else code(rng)

    return distinct(rng, min(rng.choice(COUNTS), len(pool)) if kind < 0.4 else rng.choice(COUNTS + (11, 11, 12)), item)


def numbers_of_a_list(rng: random.Random) -> list:
    """Of one length, of any below a bound, of all magnitudes, or near each other."""
    kind, most = rng.random(), rng.choice((9, 20, 99, 99, 999, 999, 9999))
    width, base = rng.randint(2, 5), rng.randint(10, 9999)
    small = kind < 0.25 and most == 9

    def draw(rng: random.Random) -> int:
        if kind < 0.25:
            return rng.randint(0, most)
        if kind < 0.4:
            return rng.randint(10 ** (width - 1), 10**width - 1)
        if kind < 0.55:
            return rng.randint(1, 200)
        if kind < 0.67:
            return rng.randint(5, 1500)
        if kind < 0.92:
            return int(10 ** rng.uniform(0, 4 if kind < 0.85 else 5.5))
        return base + rng.randint(-9, 60)

    count = rng.choice(COUNTS)
    if rng.random() < 0.06:
        return [str(draw(rng)) for _ in range(count)]  # one may be there twice
    return [str(x) for x in distinct(rng, min(count, 9) if small else count, draw)]


def by_length(items: list, down: bool) -> str:
    """The numbers by their count of digits, before they are sorted: which is longer is seen first."""
    lengths = sorted({len(item) for item in items}, reverse=down)
    if len(lengths) == 1:
        return ""
    return "".join(f" {n} digit{'s' * (n > 1)}: {', '.join(item for item in items if len(item) == n)}." for n in lengths)


OF_NUMBERS = ("largest", "smallest")


def list_of(rng: random.Random, kind: str) -> tuple:
    """The request, the result's items, the items, what is thought of numbers."""
    asks, shown, special = LIST_ASKS[kind], str, {}
    numbers = kind in OF_NUMBERS or rng.random() < (0.7 if kind == "down" else 0.45)
    if numbers:
        items = numbers_of_a_list(rng)
        order, special = sorted(items, key=int), NUMBER_ASKS
        if rng.random() < 0.08:
            special, mark = PRICE_ASKS, rng.choice(("${}", "${}", "€{}", "{}€", "£{}"))
            shown = mark.format
        elif kind in OF_NUMBERS and len(items) == 2 and rng.random() < 0.6:
            return two_of(rng, kind, items, order)
    elif kind in ("sort", "down"):
        items = words_to_sort(rng)
        order, special = sorted(items), ALPHABET_ASKS
    else:
        items, order = things_in_a_list(rng), []
    if kind in special and rng.random() < 0.45:
        asks = special[kind]
    thought = by_length(items, kind in ("down", "largest")) if numbers and kind in ("sort", "down", *OF_NUMBERS) else ""
    items, order = [shown(item) for item in items], [shown(item) for item in order]
    result = {"copy": items, "reverse": items[::-1], "sort": order, "down": order[::-1], "length": [], "largest": order[-1:],
              "smallest": order[:1]}[kind]
    return Asked(placed(rng, asks, items), f"{kind} {', '.join(items)}"), result, items, thought


def two_of(rng: random.Random, kind: str, items: list, order: list) -> tuple:
    asked = casual(rng, rng.choice(OF_TWO[kind])).format(" or ".join(items))
    return Asked(asked, f"{kind} {', '.join(items)}"), [order[kind == "largest"]], items, by_length(items, kind == "largest")


def placed(rng: random.Random, asks: list, items: list) -> str:
    """The list in one of the frames; one that ends nowhere to be seen comes last or has a line of its own."""
    text, frame = written(rng, items), rng.choice(asks)
    while not ("," in text and "\n" not in text or frame.endswith("{}") or frame.startswith("{}\n")):
        frame = rng.choice(asks)
    if "\n" in text and (text[1] in " .)" or rng.random() < 0.5):
        frame = frame.replace(" {}", "\n{}")
    return casual(rng, frame).format(text)


def written(rng: random.Random, items: list) -> str:
    """As people write lists."""
    style = rng.random()
    if style < 0.05:
        return f"[{', '.join(items)}]"
    if style < 0.08:
        return json.dumps([int(item) if item.isascii() and item.isdigit() else item for item in items], ensure_ascii=False)
    if style < 0.15 and len(items) > 2 and "and" not in items:
        return ", ".join(items[:-1]) + " and " + items[-1]
    if style < 0.3 and not any(" " in item for item in items):
        return " ".join(items)
    if style < 0.34:
        mark = rng.choice(("- ", "* ", "{}. ", "{}) "))
        return "\n".join(mark.format(i + 1) + item for i, item in enumerate(items))
    mark = rng.choice(SEPARATORS)
    one = mark == "," and all(len(item) == 3 and item.isdigit() for item in items[1:])  # 997,924 is one number
    return (", " if one else mark).join(items)


def longer(rng: random.Random, kind: str) -> tuple:
    """As list_of; in training often the longer of two, since most mistakes are in long lists."""
    found = list_of(rng, kind)
    if rng.part == "train" and rng.random() < 0.3:
        return max(found, list_of(rng, kind), key=lambda drawn: len(drawn[0]))
    return found


KINDS = ("copy", "reverse", "reverse", "sort", "sort", "sort", "sort", "down", "down", "length", "length", "largest", "smallest")
THOUGHTS = {"copy": "Copy the list.", "reverse": "Reverse the list.", "sort": "Sort the list.", "down": "Sort the list downwards.",
            "largest": "Look for the largest.", "smallest": "Look for the smallest."}


def lists(rng: random.Random, kinds: tuple = KINDS) -> Conversation:
    kind = rng.choice(kinds)
    asked, result, items, of_numbers = rng.user(lambda: longer(rng, kind))
    thinking = rng.random() < 0.5
    if kind == "length":  # an item and its number, or the number is not known
        counted = ", ".join(f"{i + 1} {item}" for i, item in enumerate(items)) + "."
        answer = f"There are {len(items)} items."
        turn = Turn("assistant", answer if thinking else f"{counted} {answer}", f"Count the items: {counted}")
    else:
        thought = THOUGHTS[kind] + of_numbers
        if kind in ("sort", "down") and not items[0].strip("$€£").isdigit():
            thought += " " + beginnings(items, result)
        answer = f"The {kind} is {result[0]}." if kind in OF_NUMBERS else ", ".join(result)
        turn = Turn("assistant", answer, thought)
    return Conversation("lists", [Turn("user", asked), turn], thinking=thinking)


def _by_letter() -> dict:
    extra = "quail quiver queen umpire urn unit x-ray xenon xylem zebra zigzag zone yard yarn yoke jar jug".split()
    pool = sorted(set(NOUNS + THINGS + ADJECTIVES + FRUITS + extra))
    return {letter: [w for w in pool if w[0] == letter] for letter in LETTERS}


BY_LETTER = _by_letter()
