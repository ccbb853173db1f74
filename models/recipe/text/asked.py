"""What a person types around a question: its core (words.Asked), which decides what is held out, is without it.

    asked, answer = rng.user(lambda: (phrased(rng, "How do I change the port?"), answer))
"""

import random
import re

from .synonyms import SYNONYMS
from .words import Asked

# None of them begins or ends a frame (frames.py): else a trained question and its opener could make a held-out one.
OPENERS = ["Please tell me: ", "Hello! ", "Hi, ", "A question: ", "Quick question: ", "Hey, ", "I want to know: ", "One more thing: ",
           "Excuse me. ", "OK. ", "By the way: ", "Another question: ", "Sorry, ", "Good day. ", "Hello. ", "Listen: ", "So: ", "Well, ",
           "Can you help me? ", "Hm, ", "Yes. ", "Thanks. ", "Thank you. ", "Good morning. ", "I have a question. ", "Say, ", "Dear Tessera, "]
# Said before a question and of no matter to it.
CONTEXTS = ["I have a small machine. ", "I run it on a server with 64 cores. ", "I use Debian. ", "I just built it. ", "It starts fine. ",
            "I read the README. ", "My colleague asked me this. ", "I am at the terminal. ", "There are two GPUs in it. ",
            "I have a model of 30 GB. ", "I am at work. ", "This is for a demo. ", "It is my first day with it. ", "I looked everywhere. ",
            "We have a cluster. ", "I come from another server. ", "Nobody here knows. ", "I forgot. ", "My boss wants to know. ",
            "It works so far. ", "My model is loaded. ", "Before I start: ", "I write a script. ", "My program talks to it. "]
CLOSERS = [" Thanks.", " I need help.", " Thank you!", " Be brief.", " I am new here.", " I could not find it.", " Thanks a lot."]
SHORT = [("What is ", "What's "), ("I am ", "I'm "), ("do not ", "don't "), ("I would ", "I'd "), ("Where is ", "Where's "), ("cannot ", "can't "),
         ("Who is ", "Who's "), ("How is ", "How's "), ("Is there ", "Is there maybe "), ("How do I ", "How do I actually "), ("How do I ", "How I "),
         ("Can I ", "Can I somehow "), ("Let us ", "Let's "), ("Please ", "Pls "), (" please.", " pls."), ("are you ", "are u "),
         ("I would like to ", "I wanna "), ("I want to ", "I wanna "), ("number of ", "no of "), (" the ", " "), (" the ", " "), (" the ", " "),
         (" a ", " "), (" and ", " & ")]


WORD = re.compile(r"""(?<![-/\w"])[A-Za-z]+(?![-/\w"])""")  # none of a flag, a path or what is quoted
SYNONYM_SHARE = 0.4


def varied(rng: random.Random, text: str) -> str:
    """One word said in another one; known, unknown and foreign matters alike, so that the word decides nothing."""
    found = [match for match in WORD.finditer(text) if match[0] in SYNONYMS or match[0].lower() in SYNONYMS]
    if not found:
        return text
    match = rng.choice(found)
    other = rng.choice(SYNONYMS.get(match[0]) or SYNONYMS[match[0].lower()])
    return text[:match.start()] + (other[0].upper() + other[1:] if match[0][0].isupper() and match[0] not in SYNONYMS else other) + text[match.end():]


def casual(rng: random.Random, text: str) -> str:
    """As people type: contracted, without capitals, with no mark at the end."""
    if rng.random() < 0.25:
        found = [pair for pair in SHORT if pair[0] in text]
        text = text.replace(*rng.choice(found), 1) if found else text
    style = rng.random()
    if style < 0.2:
        text = text[0].lower() + text[1:]
    elif style < 0.32:
        text = text.lower()
    if text[-1] in "?." and rng.random() < 0.22:
        text = text[:-1].rstrip()  # as the template shows it
    return text


def phrased(rng: random.Random, core: str) -> Asked:
    kind = rng.random()
    opener = rng.choice(OPENERS) if kind < 0.42 else rng.choice(CONTEXTS) if kind < 0.52 else ""
    closer = rng.choice(CLOSERS) if rng.random() < 0.3 else ""
    text = casual(rng, varied(rng, core) if rng.random() < SYNONYM_SHARE else core)
    return Asked(opener + text + (closer if text[-1] in "?.!" else ""), core)


def said(rng: random.Random, text: str, core: str) -> Asked:
    """As phrased, but all its words stay and the core is given: of a sum its numbers."""
    opener = rng.choice(OPENERS) if rng.random() < 0.12 else ""
    text = casual(rng, text)
    return Asked(opener + text + (rng.choice(CLOSERS) if text[-1] in "?." and rng.random() < 0.06 else ""), core)
