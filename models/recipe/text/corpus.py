"""The training text: which tasks, how often, how long; and the held-out sets.

Every user turn belongs to one part by the hash of its core (words.Asked): of a sum the numbers, of a list the items, of
a question what is left without "hello" and "please". Training is made of turns of the part "train" alone, a held-out
set of turns of its own part alone: so no question of a test was ever trained, in other clothes either.
"""

from .chat import Conversation, system_text, up_to
from .extraction import extraction, refusal
from .facts import facts
from .filler import HELD
from .identity import identity
from .lists import lists
from .manual import manual
from .paraphrases import paraphrases
from .reasoning import arithmetic
from .recall import recall, recall_of_facts
from .reference import reference
from .system import introduced
from .tools import MANY, tools
from .words import Dice, Redraw, core_of, dice

SEEDS = {"dev": 51001, "test": 73003}  # a part's sets: tune on dev, report test
REPEATS = 300  # draws without a new prompt after which a set is complete

# What a phase learns from, by shares. Even text leaves mistakes, of which the second mix has more: functions that do not
# fit, longer lists, bare questions after a text. What is still missed after it are functions and pasted sentences; then long lists of
# functions, and what is looked for in a text; then functions that are made up, and values that a request leaves out; and last what came
# into the text last: lists in more words than before, and texts of mere words.
MIXES = {
    "even": [(manual, 0.195), (identity, 0.05), (arithmetic, 0.10), (lists, 0.14), (reference, 0.05), (extraction, 0.07), (facts, 0.06),
             (refusal, 0.05), (recall_of_facts, 0.025), (lambda rng: tools(rng, practice=True), 0.26)],
    "hard": [(manual, 0.225), (identity, 0.055), (arithmetic, 0.075), (lists, 0.15), (reference, 0.03), (extraction, 0.065), (facts, 0.08),
             (refusal, 0.04), (recall_of_facts, 0.01), (lambda rng: tools(rng, unfit=0.25, practice=True), 0.27)],
    "last": [(manual, 0.165), (identity, 0.04), (arithmetic, 0.04), (lists, 0.15), (reference, 0.02), (extraction, 0.06), (facts, 0.105),
             (refusal, 0.03), (recall_of_facts, 0.01), (lambda rng: tools(rng, unfit=0.2, practice=True), 0.38)],
    "finish": [(manual, 0.15), (identity, 0.05), (arithmetic, 0.015), (lists, 0.17), (reference, 0.02), (extraction, 0.045), (facts, 0.09),
               (refusal, 0.025), (recall_of_facts, 0.025), (lambda rng: tools(rng, practice=True), 0.24),
               (lambda rng: tools(rng, practice=True, counts=MANY), 0.17)],
    "calls": [(manual, 0.12), (identity, 0.04), (arithmetic, 0.015), (lists, 0.125), (reference, 0.02), (extraction, 0.045), (facts, 0.075),
              (refusal, 0.02), (recall_of_facts, 0.02), (lambda rng: tools(rng, practice=True, made_up_share=0.5), 0.24),
              (lambda rng: tools(rng, practice=True, counts=MANY), 0.18),
              (lambda rng: tools(rng, unfit=0.1, practice=True, lacks_share=0.25), 0.1)],
    "wide": [(manual, 0.11), (identity, 0.04), (arithmetic, 0.02), (lists, 0.11), (reference, 0.12), (extraction, 0.06), (facts, 0.07),
             (refusal, 0.025), (recall_of_facts, 0.03), (lambda rng: tools(rng, practice=True, made_up_share=0.5), 0.17),
             (lambda rng: tools(rng, practice=True), 0.1), (lambda rng: tools(rng, practice=True, counts=MANY), 0.085),
             (lambda rng: tools(rng, unfit=0.1, practice=True, lacks_share=0.25), 0.06)]}


def draw(rng: Dice, task) -> Conversation:
    while True:
        try:
            return introduced(rng, task(rng))
        except Redraw:
            continue


def cut(rng: Dice, conversation: Conversation) -> Conversation:
    """Ends before another user turn, so that each question is now and then the last, which alone is learned."""
    ends = [i for i, turn in enumerate(conversation.turns) if turn.role == "user"][1:] + [len(conversation.turns)]
    return conversation if conversation.dense or len(ends) == 1 else up_to(conversation, rng.choice(ends))


def recall_length(rng: Dice, longest: int) -> int:
    """Between 128 and `longest` tokens, each octave equally likely."""
    return int(128 * (longest / 128) ** rng.random())


def training_conversation(rng: Dice, longest: int, recall_share: float, mix: str = "even") -> Conversation:
    if rng.random() < recall_share:
        return cut(rng, draw(rng, lambda r: recall(r, recall_length(r, longest), hard=mix != "even")))
    tasks, weights = zip(*MIXES[mix])
    return cut(rng, draw(rng, rng.choices(tasks, weights)[0]))


LENGTHS = {"recall_1k": 1000, "recall_4k": 4000, "recall_8k": 8000, "recall_16k": 15600, "absent": 1000, "recall_prose_2k": 2000,
           "recall_prose_6k": 6000}
TASKS = {"manual": manual, "identity": identity, "greeting": identity, "arithmetic": arithmetic, "lists": lists, "reference": reference,
         "json": extraction, "facts": facts, "refusal": refusal, "tools": tools}
OF_HELD_STYLE = ("recall_prose_2k", "recall_prose_6k")  # in a style that is never trained
# "asked": written one by one and never drawn, the nearest to what people ask.
TESTS = ["asked", "greeting", "identity", "manual", "arithmetic", "lists", "reference", "json", "facts", "refusal", "tools", "absent", "recall_1k",
         "recall_4k", "recall_8k", "recall_16k", "recall_prose_2k", "recall_prose_6k"]
AIMS = {"tools": 0.98, "recall_1k": 0.99, "recall_4k": 0.99, "recall_8k": 0.97, "recall_16k": 0.95}  # shares that are right
LONG = [name for name in TESTS if name in LENGTHS]


def one_of(rng: Dice, name: str) -> Conversation:
    if name in LENGTHS:
        return draw(rng, lambda r: recall(r, LENGTHS[name], questions=1, absent=name == "absent", style=HELD if name in OF_HELD_STYLE else ""))
    while True:
        conversation = draw(rng, TASKS[name])
        if conversation.task == name:
            return conversation


def wording(conversation: Conversation) -> str:
    return "\n".join([system_text(conversation)] + [core_of(turn.content) for turn in conversation.turns if turn.role == "user"])


def test_set(name: str, count: int, part: str = "test") -> list:
    """Held-out conversations, each of another wording; fewer than `count` when there are not so many."""
    if name == "asked":
        return paraphrases(part)[:count]
    rng = dice(f"{name}/{SEEDS[part]}", part)
    found: list = []
    seen, misses = set(), 0
    while len(found) < count and misses < REPEATS:
        conversation = one_of(rng, name)
        misses = misses + 1 if wording(conversation) in seen else 0
        if not misses:
            seen.add(wording(conversation))
            found.append(conversation)
    return found
