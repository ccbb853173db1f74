"""The training text: which tasks, how often, how long; and the held-out sets.

A conversation is held out when the hash of its user text falls into one class of 16, so training
never sees a tested question with the same values or the same wording.
"""

import random
import zlib

from .chat import Conversation
from .extraction import extraction, refusal
from .manual import identity, manual
from .reasoning import arithmetic, lists
from .recall import recall, reference
from .tools import tools
from .words import Dice

HELD_OUT_CLASSES = 16


def held_out(conversation: Conversation) -> bool:
    text = "\n".join(turn.content for turn in conversation.turns if turn.role == "user")
    return zlib.crc32(text.encode()) % HELD_OUT_CLASSES == 0


SHORT_TASKS = [(manual, 0.19), (identity, 0.07), (arithmetic, 0.19), (lists, 0.13), (reference, 0.09), (extraction, 0.09),
               (refusal, 0.06), (tools, 0.18)]
# Where even text leaves mistakes: functions that do not fit, longer lists, bare questions after a text.
FOCUS_TASKS = [(manual, 0.17), (identity, 0.06), (arithmetic, 0.12), (lists, 0.18), (reference, 0.07), (extraction, 0.05),
               (refusal, 0.05), (lambda rng: tools(rng, focus=True), 0.30)]


def draw(rng: random.Random, task, test: bool) -> Conversation:
    while True:
        conversation = task(rng)
        if held_out(conversation) == test:
            return conversation


def recall_length(rng: random.Random, longest: int) -> int:
    """Between 128 and `longest` tokens, each octave equally likely."""
    return int(128 * (longest / 128) ** rng.random())


def training_conversation(rng: random.Random, longest: int, recall_share: float, focus: bool = False) -> Conversation:
    if rng.random() < recall_share:
        return draw(rng, lambda r: recall(r, recall_length(r, longest), focus=focus), test=False)
    tasks, weights = zip(*(FOCUS_TASKS if focus else SHORT_TASKS))
    return draw(rng, rng.choices(tasks, weights)[0], test=False)


def test_set(name: str, count: int, seed: int = 20262) -> list:
    """Held-out conversations: a task's name, or recall_1k, recall_4k, recall_8k, recall_16k."""
    rng = Dice(f"{name}/{seed}")
    if name.startswith("recall_"):
        tokens = {"1k": 1000, "4k": 4000, "8k": 8000, "16k": 15600}[name.removeprefix("recall_")]
        return [draw(rng, lambda r: recall(r, tokens, questions=1), test=True) for _ in range(count)]
    task = {"manual": manual, "identity": identity, "greeting": identity, "arithmetic": arithmetic, "lists": lists,
            "reference": reference, "json": extraction, "refusal": refusal, "tools": tools}[name]
    found: list = []
    while len(found) < count:
        conversation = draw(rng, task, test=True)
        if conversation.task == name:
            found.append(conversation)
    return found


TESTS = ["greeting", "identity", "manual", "arithmetic", "lists", "reference", "json", "refusal", "tools", "recall_1k",
         "recall_4k", "recall_8k", "recall_16k"]
