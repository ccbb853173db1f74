"""Facts planted in a long text."""

import random

from .chat import Conversation, Turn
from .clauses import mail_address
from .filler import LINES, SENTENCES, some_style, text_with
from .values import web_host
from .words import (ADJECTIVES, EVERYDAY, NOUNS, SURNAMES, accented, any_word, city, code, digits, distinct, hard_choice, new_name, new_word,
                    odd, person)

NAMES_OF_VALUES = "code code code value value key password number pin id token secret".split()
BARE = "{k}?"  # the hardest to tell from the text before it
ASKED = ["What is the code of {k}?", "Which value belongs to {k}?", "What is the value of {k}?", BARE,
         "Give me the value of {k}.", "What was {k}?", "Tell me the code for {k}.", "Find the value of {k}.",
         "What does the text say about {k}?", "Please tell me the value of {k}.", "{k}: what is the value?"]
NAMED = ["What is the {n} of {k}?", "What is the {n} of {k}?", "What is the {n} for {k}?", "Which {n} does {k} have?", "Give me the {n} of {k}.",
         "Tell me the {n} for {k}.", "I need the {n} of {k}.", "What's {k}'s {n}?", "Look up the {n} of {k}.", "{k}: which {n}?",
         "Find the {n} of {k}.",
         "Which {n} belongs to {k}?", "What {n} is given for {k}?", "Can you find the {n} of {k}?", "Do you see the {n} of {k}?", "{n} of {k}?",
         "What does {k} have as its {n}?", "According to the text, what is the {n} of {k}?", "Please give me the {n} for {k}."]
INTROS = ["Read this text and answer the question below.", "Here is a long text.", "Keep the values in this text in mind.",
          "The following text hides some values.", "Text:", "Read this:", "Look at this text.", "Answer from this text.", "Document:", "Context:",
          "Here is what I have:", "Please read:", "Below is a text, then a question."]
# How text and question stand together; the question comes first now and then
FRAMES = ["{i}\n\n{t}\n\n{q}", "{i}\n\n{t}\n\n{q}", "{i}\n\n{t}\n\n{q}", "{t}\n\n{q}", "{t}\n\n{q}", "{t}\n\n{q}", "{t}\n{q}", "{t} {q}",
          "{i} {t}\n\n{q}",
          "{q}\n\n{t}", "{q}\n\n{i}\n\n{t}", "{q} {i} {t}", "{t}\n\nQuestion: {q}", "{i}\n\"\"\"\n{t}\n\"\"\"\n{q}", "{i}\n---\n{t}\n---\n{q}",
          "<text>\n{t}\n</text>\n\n{q}", "{i}\n\n{t}\n\nNow: {q}", "Question: {q}\n\nText: {t}"]
ASKED_FIRST = [frame for frame in FRAMES if frame.index("{q}") < frame.index("{t}")]  # its key must be known at the text's end


TOKENS_PER_SENTENCE = 9.35
SERVICES = "server host node door room box team order user device port shelf unit task line file".split()


def key(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if kind < 0.6:
        stem = rng.random()
        return (f"{rng.choice(SERVICES) if stem < 0.4 else any_word(rng) if stem < 0.7 else new_word(rng)}"
                f"{rng.choice('- _')}{rng.randint(1, 99)}")
    if kind < 0.7:
        return person(rng) if rng.random() < 0.5 else f"{person(rng)} {rng.choice(SURNAMES) if rng.random() < 0.5 else new_name(rng)}"
    if kind < 0.82:
        return code(rng)
    if kind < 0.9:
        return new_word(rng)
    return rng.choice((f"{rng.choice(ADJECTIVES)} {new_word(rng)}", f"{rng.choice(EVERYDAY)} {rng.randint(1, 999)}",
                       f"{rng.choice(EVERYDAY)} {rng.choice(EVERYDAY)}",
                       f"{new_name(rng)} {rng.choice(NOUNS).capitalize()}", f"{rng.choice(EVERYDAY)}.{rng.choice(EVERYDAY)}", city(rng),
                       f"{rng.choice(EVERYDAY)}_{rng.choice(EVERYDAY)}".upper(), accented(rng)))


def keys_of(rng: random.Random, count: int) -> list:
    """Distinct keys; sometimes all of one shape, which are the hardest to tell apart."""
    if rng.random() < 0.2:
        stem = rng.choice(SERVICES) if rng.random() < 0.5 else new_word(rng)
        return distinct(rng, count, lambda r: f"{stem}-{r.randint(1, 20 + 3 * count)}")
    return distinct(rng, count, key)


def value(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.45:
        return digits(rng, rng.randint(3, 6))
    if kind < 0.63:
        return new_word(rng)
    if kind < 0.8:
        return code(rng)
    if kind < 0.9:
        return odd(rng)
    return rng.choice((f"{any_word(rng)} {any_word(rng)}", f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}", mail_address(rng, person(rng)),
                       web_host(rng),
                       f"{rng.randint(1, 999)}.{digits(rng, 2)}", f"{digits(rng, 2)}:{digits(rng, 2)}", f"{digits(rng, 3)}-{digits(rng, 4)}"))


def missing(rng: random.Random, keys: list) -> str:
    """A key that is not among these, often nearly one of them."""
    while True:
        near, kind = rng.choice(keys), rng.random()
        if kind < 0.3 and "-" in near:
            found = near.rsplit("-", 1)[0] + f"-{rng.randint(1, 200)}"
        elif kind < 0.6 and " " in near:
            head, tail = near.rsplit(" ", 1)
            found = f"{head} {rng.choice(NOUNS)}" if rng.random() < 0.5 else f"{rng.choice(ADJECTIVES)} {tail}"
        else:
            found = key(rng)
        if found not in keys:
            return found


ABSENT_SHARE, THINKING = 0.18, 0.4  # without the thought, which names the key after the text, it is harder


def answer_for(k: str, known: dict) -> Turn:
    if k in known:
        return Turn("assistant", f"It is {known[k]}.", f"Look for {k}.")
    return Turn("assistant", f"The text gives no value for {k}.", f"Look for {k}. It is not there.")


def question_for(rng: random.Random, k: str, n: str, bare: float) -> str:
    """Of what is called `n` in the text, "" where it has no name."""
    asks = [BARE] if rng.random() < bare else NAMED if n and rng.random() < 0.7 else ASKED
    return rng.choice(asks).format(k=k, n=n)


def asked_of(rng: random.Random, text: str, question: str, frame: str) -> str:
    return frame.format(i=rng.choice(INTROS), t=text, q=question)


def name_of_values(rng: random.Random) -> list:
    """What the values of a text are called: all alike, or each its own."""
    return [rng.choice(NAMES_OF_VALUES)] if rng.random() < 0.4 else NAMES_OF_VALUES


def recall_of_facts(rng: random.Random) -> Conversation:
    """Some facts and nothing around them, as a person types them: "server-7 = 1234. rack-2 = 5678. What is server-7?" """
    keys = keys_of(rng, rng.randint(2, 6) if rng.random() < 0.8 else rng.randint(7, 25))
    known = {k: value(rng) for k in keys}
    style, mark = (rng.choice(SENTENCES), rng.choice((" ", "\n"))) if rng.random() < 0.6 else (rng.choice(LINES), "\n")
    n = rng.choice(NAMES_OF_VALUES[:6])
    text = mark.join(style.format(k=k, v=v, n=n) for k, v in known.items())

    def ask() -> tuple:
        k = missing(rng, keys) if rng.random() < ABSENT_SHARE else rng.choice(keys)
        asked = question_for(rng, k, n if "{n}" in style else "", 0.1) if rng.random() < 0.8 else rng.choice(("What is {}?", "And {}?")).format(k)
        return asked_of(rng, text, asked, rng.choice(FRAMES) if rng.random() < 0.3 else f"{{t}}{rng.choice((' ', chr(10), chr(10) * 2))}{{q}}"), k

    asked, k = rng.user(ask)
    return Conversation("recall", [Turn("user", asked), answer_for(k, known)], thinking=rng.random() < 0.5)


def recall_in_parts(rng: random.Random, tokens: int) -> Conversation:
    """Every turn adds text and then asks for something of any turn: one long text asks after its end only once,
    and where the question begins is what is hard to see there."""
    keys = iter(keys_of(rng, max(4, tokens // 60)))
    known, named, turns, length = {}, {}, [], 0
    names, style = name_of_values(rng), some_style(rng, tokens)
    while length < tokens:
        part = int(60 * (1500 / 60) ** rng.random())
        added = {k: value(rng) for _, k in zip(range(rng.randint(1, 4)), keys)}
        known |= added
        named |= {k: rng.choice(names) for k in added}
        length += part
        style = some_style(rng, tokens) if rng.random() < 0.5 else style
        text = text_with(rng, part, [(k, v, named[k]) for k, v in added.items()], [], style)
        pool = list(added) if added and rng.random() < 0.4 else list(known)

        def ask() -> tuple:
            k = missing(rng, list(known)) if rng.random() < ABSENT_SHARE else rng.choice(pool)
            return asked_of(rng, text, question_for(rng, k, named.get(k, names[0]), 0.4), hard_choice(rng, FRAMES, ASKED_FIRST)), k

        asked, k = rng.user(ask)
        turns += [Turn("user", asked), answer_for(k, known)]
    return Conversation("recall", turns, thinking=rng.random() < THINKING, dense=rng.random() < 0.7)


def recall(rng: random.Random, tokens: int, questions: int | None = None, hard: bool = False, absent: bool = False, style: str = "") -> Conversation:
    """A text of about `tokens` tokens; `questions` None asks many, as in training; `hard` begins with hard ones;
    `absent` asks for what is not there."""
    if hard and rng.random() < 0.6:
        return recall_in_parts(rng, tokens)
    sentences = max(2, int(tokens / TOKENS_PER_SENTENCE))
    planted = min(max(2, sentences // 3), rng.randint(4, 12) if questions else rng.randint(3, 40))
    keys = keys_of(rng, planted + 3)
    keys, spoken_of = keys[:planted], keys[planted:] if sentences > 12 and rng.random() < 0.5 else []
    known, names = {k: value(rng) for k in keys}, name_of_values(rng)
    named = {k: rng.choice(names) for k in keys}
    mentions = spoken_of + (rng.sample(keys, min(3, planted)) if spoken_of and rng.random() < 0.6 else [])
    text = text_with(rng, tokens, [(k, v, named[k]) for k, v in known.items()], mentions, style or some_style(rng, tokens))
    left = rng.sample(keys, min(questions or rng.randint(1, 4) + tokens // 64, planted, 24))
    absent_share = float(absent) if questions else ABSENT_SHARE
    turns: list = []
    for n in range(len(left)):

        def ask() -> tuple:
            if rng.random() < absent_share:
                k = rng.choice(spoken_of) if spoken_of and rng.random() < 0.4 else missing(rng, keys)
            else:
                k = rng.choice(keys if questions else left)
            asked = question_for(rng, k, named.get(k, names[0]), 0.35 if hard and n == 0 else 0.05)
            return asked_of(rng, text, asked, hard_choice(rng, FRAMES, ASKED_FIRST)) if n == 0 else asked, k

        asked, k = rng.user(ask)
        left = [other for other in left if other != k] or left
        turns += [Turn("user", asked), answer_for(k, known)]
    many = not questions and rng.random() < 0.75
    return Conversation("recall", turns, thinking=rng.random() < 0.5, dense=many)
