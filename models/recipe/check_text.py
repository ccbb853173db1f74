"""Checks the training text against the held-out sets: python3 check_text.py [--count N] [--conversations N]

Prints how many user turns of the sets occur in a sample of the training text (none may, in any case or punctuation),
how many prompts each set has, and for the answers of closed tasks how many wordings training keeps.
"""

import argparse
import collections

from text.chat import render
from text.corpus import LONG, TESTS, test_set, training_conversation
from text.words import core_of, dice, part_of

CLOSED = ("greeting", "identity", "manual")
OPEN = "I know no "  # and then the unknown name, which is another each time
LONGEST = 1400


def users(conversation) -> list:
    return [core_of(turn.content) for turn in conversation.turns if turn.role == "user"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500, help="conversations of a set; a tenth of the long ones")
    parser.add_argument("--conversations", type=int, default=50000, help="of training")
    options = parser.parse_args()
    rng = dice("check/1")
    trained, wordings, length = set(), collections.defaultdict(set), collections.Counter()
    for i in range(options.conversations):
        conversation = training_conversation(rng, LONGEST, 0.1, ("even", "hard", "last")[i % 3])
        trained.update(users(conversation))
        assert all(part_of(turn.content) == "train" for turn in conversation.turns if turn.role == "user")
        length[conversation.task] += sum(len(text) for text, learned in render(conversation) if learned)
        for asked, answer in zip(conversation.turns, conversation.turns[1:]):
            if conversation.task in CLOSED and asked.role == "user":
                wordings[conversation.task, answer.content].add(core_of(asked.content))
    print(f"{options.conversations} training conversations, {len(trained)} different user turns")
    print("learned characters:", {task: f"{n / length.total():.1%}" for task, n in length.most_common()})
    alone: dict = collections.defaultdict(list)
    for part in ("dev", "test"):
        for name in TESTS:
            found = test_set(name, options.count // (10 if name in LONG else 1), part)
            turns = [turn for conversation in found for turn in users(conversation)]
            leaked = sum(turn in trained for turn in turns)
            print(f"{part} {name}: {len(found)} prompts, {len(turns)} user turns, {leaked} of them in the training sample")
            assert leaked == 0
            for conversation in found:
                for asked, answer in zip(conversation.turns, conversation.turns[1:]):
                    if conversation.task in CLOSED and asked.role == "user" and not answer.content.startswith(OPEN):
                        alone[conversation.task].append(len(wordings[conversation.task, answer.content]))
    for task in CLOSED:
        kept = sorted(alone[task])
        print(f"{task}: a tested answer has in the sample {kept[0]} wordings at least, {kept[len(kept) // 2]} in the median")


if __name__ == "__main__":
    main()
