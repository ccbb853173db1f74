"""Arithmetic with the steps written down."""

import random

from .asked import said
from .chat import Conversation, Turn
from .words import FRUITS, THINGS, Asked, person


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
             "Is {a} prime?", "Is {a} even?", "Is {a} larger than {b}?", "Round {a}.", "What is half of {a}?"]
    if rng.random() < 0.2:
        frame, asked = "{}", rng.choice(whole).format(a=a, b=b, c=c, long=long)
    else:
        frame, asked = rng.choice(SUMS), rng.choice(kinds)
    return said(rng, frame.format(asked), asked)
