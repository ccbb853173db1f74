"""Arithmetic with the steps written down, and lists."""

import json
import random

from .asked import casual, said
from .chat import Conversation, Turn
from .words import (CITIES, COLORS, DAYS, EVERYDAY, FRUITS, LETTERS, NAMES, THINGS, Asked, any_word, code, distinct, new_name, new_word,
                    person)


def add_steps(a: int, b: int) -> str:
    steps, carry = [], 0
    left, right = str(a)[::-1], str(b)[::-1]
    for i in range(max(len(left), len(right))):
        x = int(left[i]) if i < len(left) else 0
        y = int(right[i]) if i < len(right) else 0
        total = x + y + carry
        steps.append(f"{x} + {y} + {carry} = {total}, write {total % 10}, carry {total // 10}")
        carry = total // 10
    return f"{a} + {b}: " + "; ".join(steps) + f". {a} + {b} = {a + b}"


def subtract_steps(a: int, b: int) -> str:
    steps, borrow = [], 0
    left, right = str(a)[::-1], str(b)[::-1]
    for i in range(len(left)):
        x = int(left[i])
        y = int(right[i]) if i < len(right) else 0
        short = x - y - borrow < 0
        digit = x - y - borrow + (10 if short else 0)
        steps.append(f"{x} - {y} - {borrow}, write {digit}, borrow {int(short)}")
        borrow = int(short)
    return f"{a} - {b}: " + "; ".join(steps) + f". {a} - {b} = {a - b}"


def difference_steps(a: int, b: int) -> str:
    if a >= b:
        return subtract_steps(a, b)
    return f"{a} is less than {b}. {subtract_steps(b, a)}. {a} - {b} = {a - b}"


def digit_product(a: int, d: int) -> str:
    steps, carry = [], 0
    for char in str(a)[::-1]:
        product = int(char) * d
        total = product + carry
        steps.append(f"{char} x {d} = {product}, plus {carry} is {total}, write {total % 10}, carry {total // 10}")
        carry = total // 10
    return f"{a} x {d}: " + "; ".join(steps) + f". {a} x {d} = {a * d}"


def multiply_steps(a: int, b: int) -> str:
    """By the digits of the shorter factor."""
    if len(str(a)) < len(str(b)):
        a, b = b, a
    if b < 10:
        return digit_product(a, b)
    ones, tens = b % 10, b // 10
    return "\n".join([digit_product(a, ones), digit_product(a, tens), f"{a} x {tens * 10} = {a * tens * 10}",
                      add_steps(a * ones, a * tens * 10), f"{a} x {b} = {a * b}"])


def number(rng: random.Random, most_digits: int) -> int:
    digits = rng.randint(1, most_digits)
    return rng.randint(10 ** (digits - 1), 10**digits - 1)


# One list for what is computed and what is refused, so that the frame decides nothing; so do the signs.
SUMS = ["What is {}?", "What is {}?", "What is {}?", "How much is {}?", "How much is {}?", "{} = ?", "{} =", "{}", "{}", "{}?", "Compute {}.",
        "Calculate {}.", "What does {} make?", "Can you compute {}?", "Work out {}.", "Solve {}.", "Evaluate {}.", "What is the result of {}?",
        "Tell me what {} is.", "{} is what?", "{} equals?", "What does {} equal?", "How many are {}?", "Please calculate {}.",
        "What do you get for {}?"]
SIGNS = {"plus": ["{} + {}", "{} + {}", "{} + {}", "{}+{}", "{} plus {}", "{} and {} together", "the sum of {} and {}"],
         "minus": ["{} - {}", "{} - {}", "{} - {}", "{}-{}", "{} minus {}", "{} minus {}", "the difference of {} and {}"],
         "times": ["{} x {}", "{} x {}", "{} * {}", "{} * {}", "{}*{}", "{}x{}", "{} times {}", "{} times {}", "{} multiplied by {}",
                   "the product of {} and {}", "{} × {}"]}
SPOKEN = {"plus": ["Add {} and {}.", "Add {} to {}.", "Sum {} and {}.", "What do {} and {} make together?", "Add up {} and {}."],
          "minus": ["Subtract {1} from {0}.", "Take {1} away from {0}.", "Take {1} from {0}.", "What is left of {0} without {1}?"],
          "times": ["Multiply {} by {}.", "Multiply {} and {}.", "Multiply {} with {}.", "What do you get when you multiply {} by {}?"]}


def simple_sum(rng: random.Random) -> tuple:
    kind = rng.choices(("plus", "minus", "times"), (0.33, 0.3, 0.37))[0]
    if kind == "times":
        a, b = (number(rng, 4), number(rng, 1)) if rng.random() < 0.6 else (number(rng, 3), rng.randint(10, 99))
    else:
        a, b = number(rng, 5), number(rng, 5)
    if rng.random() < 0.02:
        b = 0
    if kind == "minus" and a < b and rng.random() < 0.7 or kind == "times" and rng.random() < 0.4:
        a, b = b, a
    frame = rng.choice(SPOKEN[kind]) if rng.random() < 0.15 else rng.choice(SUMS).replace("{}", rng.choice(SIGNS[kind]))
    steps, result = {"plus": (add_steps, a + b), "minus": (difference_steps, a - b), "times": (multiply_steps, a * b)}[kind]
    # The same in either order: who has seen 7 x 23 knows 23 x 7.
    core = f"{a} minus {b}" if kind == "minus" else f"{max(a, b)} {kind} {min(a, b)}"
    return said(rng, frame.format(a, b), core), steps(a, b), result


THINGS_MANY = [thing + "s" for thing in THINGS if thing[-1] not in "sxhf"]


def story(rng: random.Random) -> tuple:
    name, thing = person(rng), rng.choice(FRUITS + THINGS_MANY)
    a, b = rng.randint(10, 300), rng.randint(2, 200)
    c = rng.randint(1, a + b)
    kind = rng.random()
    if kind < 0.5:
        ask = rng.choice(["{n} has {a} {t}, buys {b} more and gives away {c}. How many {t} are left?",
                          "{n} picks {a} {t} and then {b} more. {c} of them are eaten. How many remain?",
                          "A box holds {a} {t}. {n} adds {b} and takes out {c}. How many {t} are in the box?"])
        result = a + b - c
        steps = add_steps(a, b) + "\n" + subtract_steps(a + b, c)
    else:
        b = rng.randint(2, 9)
        c = rng.randint(1, 200)
        ask = rng.choice(["{n} has {b} boxes with {a} {t} each and finds {c} more. How many {t} is that?",
                          "There are {a} {t} in each of {b} bags. {n} adds {c}. How many {t} are there?"])
        result = a * b + c
        steps = multiply_steps(a, b) + "\n" + add_steps(a * b, c)
    return said(rng, ask.format(n=name, t=thing, a=a, b=b, c=c), f"{a} {b} {c}"), steps, result


def arithmetic(rng: random.Random) -> Conversation:
    asked, steps, result = rng.user(lambda: story(rng) if rng.random() < 0.25 else simple_sum(rng))
    thinking = rng.random() < 0.7
    answer = f"The result is {result}."
    content = answer if thinking else f"{steps}\n{answer}"
    return Conversation("arithmetic", [Turn("user", asked), Turn("assistant", content, steps)], thinking=thinking)


def unfit_sum(rng: random.Random) -> Asked:
    """A calculation that is not among the trained ones: division, several operations, long numbers, fractions."""
    a, b, c = number(rng, 4), number(rng, 3), number(rng, 3)
    sign, other = rng.choice("+-*"), rng.choice("+-*/")
    long = rng.randint(10**5, 10 ** rng.randint(6, 9) - 1)
    wide = rng.randint(100, 9999), rng.randint(100, 9999)
    kinds = [f"{a} / {b}", f"{a} divided by {b}", f"{a}/{b}", f"{a} : {b}", f"{a} {sign} {b} {other} {c}", f"({a} {sign} {b}) {other} {c}",
             f"{a} plus {b} minus {c}", f"{a} times {b} plus {c}", f"{long} {sign} {a}", f"{a} {sign} {long}", f"{wide[0]} x {wide[1]}",
             f"{wide[0]} * {wide[1]}", f"{wide[0] + 1000} x {rng.randint(11, 99)}", f"{number(rng, 5)}.{number(rng, 2)} {sign} {b}",
             f"{a} {sign} {b}.{c}", f"{a}^{b % 9 + 2}", f"{a} to the power of {b % 9 + 2}", f"the square root of {a}",
             f"{b} percent of {a}", f"{b} % of {a}", f"half of {a}",
             f"{a} modulo {b}", f"the average of {a}, {b} and {c}", f"the sum of {a}, {b} and {c}", f"-{a} {sign} {b}", f"{b}!"]
    whole = ["Divide {a} by {b}.", "How often does {b} fit into {a}?", "Solve x + {b} = {a}.", "What is the remainder of {a} and {b}?",
             "Share {a} among {b}.", "Add {a}, {b} and {c}.", "Multiply {a}, {b} and {c}.", "Is {a} a prime number?", "Double {long}.",
             "Is {a} prime?", "Is {a} even?", "Is {a} larger than {b}?", "Round {a}.", "Which is larger, {a} or {b}?", "What is half of {a}?"]
    if rng.random() < 0.2:
        frame, asked = "{}", rng.choice(whole).format(a=a, b=b, c=c, long=long)
    else:
        frame, asked = rng.choice(SUMS), rng.choice(kinds)
    return said(rng, frame.format(asked), asked)


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
    "length": ["How many items are in this list: {}", "Count the items: {}", "Count: {}", "How many are these: {}", "How long is this list? {}",
               "Count these: {}", "{}\nHow many items are these?", "{}\nCount them.", "{}: how many are these?", "How many items are in {}?"],
}
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
COUNTRIES = """Argentina Austria Belgium Brazil Canada Chile China Cuba Denmark Egypt Finland France Germany Greece Iceland India Ireland Italy
Japan Kenya Mexico Norway Peru Poland Portugal Spain Sweden Turkey Uganda Vietnam""".split()
# What people try: words of one sort, most of them few.
POOLS = (FRUIT, FRUIT, FRUIT, VEGETABLES, ANIMALS, ANIMALS, COUNTRIES, NAMES, NAMES, CITIES, COLORS, COLORS, THINGS, EVERYDAY, EVERYDAY,
         FRUIT + VEGETABLES + ANIMALS + COLORS + THINGS)
REAL_WORDS = 0.72


def words_to_sort(rng: random.Random) -> list:
    """Real words, any that come; or words of different initials, of which sometimes two or three share theirs."""
    if rng.random() < REAL_WORDS:
        pool = rng.choice(POOLS)
        return distinct(rng, rng.choice((2, 3, 3, 3, 4, 4, 4, 5, 5, 6, 7)), lambda r: r.choice(pool))
    count = rng.randint(2, 7)
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


def things_in_a_list(rng: random.Random) -> list:
    """Of one sort, as people's lists are, or mixed."""
    pools = (NAMES, CITIES, COLORS, FRUITS, FRUIT, ANIMALS, DAYS, THINGS, EVERYDAY)
    pool, kind = rng.choice(pools), rng.random()

    def item(rng: random.Random) -> str:
        if kind < 0.4:
            return rng.choice(pool)
        return any_word(rng) if rng.random() < 0.7 else new_name(rng) if rng.random() < 0.4 else code(rng)

    return distinct(rng, rng.randint(2, 7 if kind < 0.4 else 12), item)


def numbers_of_a_list(rng: random.Random) -> list:
    most = rng.choice((9, 9, 20, 99, 99, 999, 999, 9999))
    return [str(x) for x in distinct(rng, rng.randint(2, 9 if most == 9 else 10), lambda r: r.randint(0, most))]


def list_of(rng: random.Random, kind: str) -> tuple:
    """The request, the result's items, the items."""
    asks = LIST_ASKS[kind]
    if rng.random() < (0.7 if kind == "down" else 0.4):
        items = numbers_of_a_list(rng)
        order, special = sorted(items, key=int), NUMBER_ASKS
    elif kind in ("sort", "down"):
        items = words_to_sort(rng)
        order, special = sorted(items), ALPHABET_ASKS
    else:
        items, order, special = things_in_a_list(rng), [], {}
    if kind in special and rng.random() < 0.45:
        asks = special[kind]
    result = {"copy": items, "reverse": items[::-1], "sort": order, "down": order[::-1], "length": [str(len(items))]}[kind]
    return Asked(placed(rng, asks, items), f"{kind} {', '.join(items)}"), result, items


def placed(rng: random.Random, asks: list, items: list) -> str:
    """The list in one of the frames; one that ends nowhere to be seen comes last or has a line of its own."""
    text, frame = written(rng, items), rng.choice(asks)
    while not ("," in text and "\n" not in text or frame.endswith("{}") or frame.startswith("{}\n")):
        frame = rng.choice(asks)
    if "\n" in text:
        frame = frame.replace(" {}", "\n{}") if rng.random() < 0.5 else frame
    return casual(rng, frame).format(text)


def written(rng: random.Random, items: list) -> str:
    """As people write lists."""
    style = rng.random()
    if style < 0.05:
        return f"[{', '.join(items)}]"
    if style < 0.08:
        return json.dumps([int(item) if item.isdigit() else item for item in items], ensure_ascii=False)
    if style < 0.15 and len(items) > 2 and "and" not in items:
        return ", ".join(items[:-1]) + " and " + items[-1]
    mark = " " if style < 0.22 else rng.choice(SEPARATORS)
    one = mark == "," and all(len(item) == 3 and item.isdigit() for item in items[1:])  # 997,924 is one number
    return (", " if one else mark).join(items)


def longer(rng: random.Random, kind: str) -> tuple:
    """As list_of; in training often the longer of two, since most mistakes are in long lists."""
    found = list_of(rng, kind)
    if rng.part == "train" and rng.random() < 0.4:
        return max(found, list_of(rng, kind), key=lambda drawn: len(drawn[0]))
    return found


def lists(rng: random.Random) -> Conversation:
    kind = rng.choice(("copy", "reverse", "reverse", "sort", "sort", "sort", "sort", "down", "down", "length"))
    asked, result, items = rng.user(lambda: longer(rng, kind))
    thought = {"copy": "Copy the list.", "reverse": "Reverse the list.", "sort": "Sort the list.", "down": "Sort the list downwards.",
               "length": "Count the items: " + ", ".join(f"{i + 1} {item}" for i, item in enumerate(items))}[kind]
    if kind in ("sort", "down") and not all(item.isdigit() for item in items):
        thought += " " + beginnings(items, result)
    thinking = kind == "length" or rng.random() < 0.5
    return Conversation("lists", [Turn("user", asked), Turn("assistant", ", ".join(result), thought)], thinking=thinking)


def _by_letter() -> dict:
    from .words import ADJECTIVES, NOUNS
    extra = "quail quiver queen umpire urn unit x-ray xenon xylem zebra zigzag zone yard yarn yoke jar jug".split()
    pool = sorted(set(NOUNS + THINGS + ADJECTIVES + FRUITS + extra))
    return {letter: [w for w in pool if w[0] == letter] for letter in LETTERS}


BY_LETTER = _by_letter()
