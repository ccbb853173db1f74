"""The training text: which tasks, how often, how long; and the held-out sets.

Every user turn belongs to one part by the hash of its wording (words.part_of). Training is made of turns of the
part "train" alone, a held-out set of turns of its own part alone: so no turn of a test was ever trained, in no
place of no conversation. Closed tasks (greetings, questions about Tessera) are asked in other wordings in training.
"""

from .chat import Conversation, system_text, up_to
from .extraction import extraction, refusal
from .identity import identity
from .manual import manual
from .reasoning import arithmetic, lists
from .recall import recall, recall_of_facts, reference
from .tools import tools
from .words import Dice, Redraw, dice, plain

SEEDS = {"dev": 51001, "test": 62002}  # a part's sets: tune on dev, report test
REPEATS = 300  # draws without a new prompt after which a set is complete

# What a phase learns from, by shares. Even text leaves mistakes, which the others have more of: functions that do not
# fit, longer lists, bare questions after a text; and how a function is found.
MIXES = {
    "even": [(manual, 0.13), (identity, 0.05), (arithmetic, 0.15), (lists, 0.14), (reference, 0.09), (extraction, 0.09),
             (refusal, 0.06), (recall_of_facts, 0.04), (lambda rng: tools(rng, looking=False), 0.32)],
    "hard": [(manual, 0.10), (identity, 0.04), (arithmetic, 0.11), (lists, 0.17), (reference, 0.09), (extraction, 0.08),
             (refusal, 0.05), (recall_of_facts, 0.03), (lambda rng: tools(rng, unfit=0.45, looking=False), 0.40)],
    "calls": [(manual, 0.05), (identity, 0.03), (arithmetic, 0.12), (lists, 0.14), (reference, 0.06), (extraction, 0.07),
              (refusal, 0.03), (recall_of_facts, 0.03), (lambda rng: tools(rng, unfit=0.3), 0.47)]}


def draw(rng: Dice, task) -> Conversation:
    while True:
        try:
            return task(rng)
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


LENGTHS = {"recall_1k": 1000, "recall_4k": 4000, "recall_8k": 8000, "recall_16k": 15600, "absent": 1000}
TASKS = {"manual": manual, "identity": identity, "greeting": identity, "arithmetic": arithmetic, "lists": lists, "reference": reference,
         "json": extraction, "refusal": refusal, "tools": tools}
TESTS = ["greeting", "identity", "manual", "arithmetic", "lists", "reference", "json", "refusal", "tools", "absent", "recall_1k",
         "recall_4k", "recall_8k", "recall_16k"]
LONG = [name for name in TESTS if name in LENGTHS]


def one_of(rng: Dice, name: str) -> Conversation:
    if name in LENGTHS:
        return draw(rng, lambda r: recall(r, LENGTHS[name], questions=1, absent=name == "absent"))
    while True:
        conversation = draw(rng, TASKS[name])
        if conversation.task == name:
            return conversation


def wording(conversation: Conversation) -> str:
    return "\n".join([system_text(conversation)] + [plain(turn.content) for turn in conversation.turns if turn.role == "user"])


def test_set(name: str, count: int, part: str = "test") -> list:
    """Held-out conversations, each of another wording; fewer than `count` when there are not so many."""
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
