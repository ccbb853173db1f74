"""paraphrases.tsv: questions in everyday words, written one by one and never learned; the test of what the generator's wordings are good for.

    python3 -m text.paraphrases      # checks that none of them is drawn, and that the generator gives their answers
"""

import collections

from .chat import Conversation, Turn
from .words import core_of, dice, half_of, hand_made, part_of

ROWS = hand_made("paraphrases.tsv")


def paraphrases(part: str) -> list:
    """Each question of the part alone, as conversations of the task "asked"."""
    return [Conversation("asked", [Turn("user", question), Turn("assistant", answer)], thinking=False) for question, answer in ROWS
            if half_of(question) == part]


def main() -> None:
    from .extraction import refusal
    from .identity import identity
    from .manual import manual, purpose
    from .topics import TOPICS
    for topic in TOPICS:
        assert purpose(topic), topic.head  # of flags and endpoints: they exist
    rng = dice("paraphrases/1")
    wordings = collections.defaultdict(set)
    for i in range(60000):
        turns = (manual, manual, manual, identity, refusal)[i % 5](rng).turns
        for asked, answer in zip(turns, turns[1:]):
            if asked.role == "user":
                assert part_of(asked.content) == "train", asked.content
                wordings[answer.content].add(core_of(asked.content))
    missing = {answer for _, answer in ROWS if answer not in wordings and not answer.startswith("I know no ")}
    print(f"{len(ROWS)} questions, {len({answer for _, answer in ROWS})} answers; none of them in 60000 conversations")
    print(f"answers that the generator did not give: {sorted(missing) or 'none'}")
    counts = sorted((len(found), answer) for answer, found in wordings.items() if not answer.startswith("I know no "))
    print(f"{len(counts)} answers; wordings of an answer: {counts[0][0]} at least, {counts[len(counts) // 2][0]} in the median")
    for count, answer in counts[:10]:
        print(f"  {count} {answer[:100]}")


if __name__ == "__main__":
    main()
