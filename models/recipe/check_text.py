"""Checks the training text against the held-out sets: python3 check_text.py [--count N] [--conversations N]

It knows a question again by a way of its own: lower case, one word for all synonyms (text/synonyms.txt), the words' order and then
without it. No turn of a set may be in a sample of the training text in its words' order, and few as a bag of words; no deed of a
function that is made up may be, whatever its verb. It prints how many prompts each set has, which of these functions' names the
sample has, and for the answers of closed tasks how many wordings training keeps. It fails where one of that is not so.
"""

import argparse
import collections
import re
from pathlib import Path

from text.catalog import CATALOG
from text.chat import render
from text.corpus import LONG, MIXES, TESTS, test_set, training_conversation
from text.judged import JUDGED, judged
from text.paraphrases import paraphrases
from text.words import SAME, core_of, dice, part_of

CLOSED = ("greeting", "identity", "manual")
OPEN = "I know no "  # and then the unknown name, which is another each time
LONGEST, SHORT_TEXT = 1400, 600
MOST_BAGS = 0.02  # of a set's turns may have the words of a trained one in another order;
MOST_GREETINGS = 0.1  # of greetings, which have few words: "hi assistant, all good" and "all good, assistant"
# What comes around a question and is of no matter
AROUND = set("""please hello hi hey thanks thank ok so well a an the of to is are do does i me my it can could would tell question""".split())
WORD = re.compile(r"[^\W_]+|[-+*/×^%](?=\s*\d)")
WANTED = re.compile(r"(?:Wanted|You want): (\w+) (\w+)\. ")


def groups() -> list:
    """Of synonyms, each with all words that are joined by any line."""
    found: list = []
    for line in (Path(__file__).parent / "text/synonyms.txt").read_text().lower().splitlines():
        if line and line[0] != "#":
            words = set(re.split(r": | \| ", line))
            joined = [group for group in found if group & words]
            found = [group for group in found if not group & words] + [words.union(*joined)]
    return found


NAMES = sorted(((f" {word} ", f" {min(group)} ") for group in groups() for word in group if word != min(group)), key=lambda pair: -len(pair[0]))


def words(text: str) -> tuple:
    """In order, each as the first of its synonyms."""
    line = " " + "  ".join(WORD.findall(text.lower())) + " "
    for _ in range(2):
        for word, first in NAMES:
            spaced = word.replace(" ", "  ")[1:-1]
            if spaced in line:
                line = line.replace(spaced, first)
    return tuple(line.split())


def bag(found: tuple) -> tuple:
    return tuple(sorted(set(found) - AROUND))


def users(conversation) -> list:
    """The short turns; of facts the first alone, since of another text the same question is another."""
    found = [turn.content for turn in conversation.turns if turn.role == "user" and len(turn.content) < SHORT_TEXT]
    return found[:1] if conversation.task == "facts" else found


def forms(text: str) -> set:
    """As it is said, and its core, without what stands around it; the core alone where that says more, since the text is then one of
    two halves (text/lacking.py)."""
    said, core = words(str(text)), words(getattr(text, "core", str(text)))
    return {core} if set(said) < set(core) else {said, core}


def deeds(conversation) -> set:
    """Verb and noun of what is wanted, the verb as the first of those that mean the same."""
    texts = [turn.thought + turn.content for turn in conversation.turns if turn.role == "assistant"]
    return {(SAME.get(verb, [verb])[0], noun) for text in texts for verb, noun in WANTED.findall(text)}


class Sample:
    """Of the training text."""

    def __init__(self, count: int):
        rng = dice("check/1")
        self.orders, self.bags, self.deeds, self.functions = set(), set(), set(), set()
        self.wordings, length = collections.defaultdict(set), collections.Counter()
        for i in range(count):
            conversation = training_conversation(rng, LONGEST, 0.1, list(MIXES)[i % len(MIXES)])
            assert all(part_of(turn.content) == "train" for turn in conversation.turns if turn.role == "user")
            for text in users(conversation):
                found = forms(text)
                self.orders |= found
                self.bags |= set(map(bag, found))
            self.deeds |= deeds(conversation)
            self.functions |= {tool["function"]["name"] for tool in conversation.tools}
            length[conversation.task] += sum(len(text) for text, learned in render(conversation) if learned)
            for asked, answer in zip(conversation.turns, conversation.turns[1:]):
                if conversation.task in CLOSED and asked.role == "user":
                    self.wordings[conversation.task, answer.content].add(core_of(asked.content))
        print(f"{count} training conversations, {len(self.orders)} different user turns")
        print("learned characters:", {task: f"{n / length.total():.1%}" for task, n in length.most_common()})

    def check(self, name: str, texts: list) -> list:
        """What is wrong with a set's turns."""
        each = list(map(forms, texts))
        order = sum(bool(found & self.orders) for found in each)
        bags = sum(any(bag(form) in self.bags for form in found) for found in each)
        print(f"{name}: {len(texts)} short user turns; in the sample {order}, with their words in any order {bags}")
        most = (MOST_GREETINGS if name.endswith("greeting") else MOST_BAGS) * max(len(texts), 60)
        return [f"{name}: {order} trained turns"] * (order > 0) + [f"{name}: {bags} trained bags of words"] * (bags > most)


def of_functions(sample: Sample, name: str, found: list) -> list:
    made_up = [conversation for conversation in found if conversation.kind == "made-up"]
    called = {call for conversation in made_up for turn in conversation.turns for call, _ in turn.calls}
    catalog = {tuple(f.topic.split(" ")) for f in CATALOG}
    trained = {(verb, noun) for conversation in made_up for verb, noun in deeds(conversation)} & sample.deeds
    trained = {(verb, noun) for verb, noun in trained if not any((other, noun) in catalog for other in SAME.get(verb, [verb]))}
    print(f"{name}: of {len(called)} names of made-up functions that are called {len(called & sample.functions)} are in the sample")
    return [f"{name}: trained deeds {sorted(trained)}"] * bool(trained)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=500, help="conversations of a set; a tenth of the long ones")
    parser.add_argument("--conversations", type=int, default=50000, help="of training")
    options = parser.parse_args()
    sample = Sample(options.conversations)
    wrong, alone = [], collections.defaultdict(list)
    for part in ("dev", "test"):
        for name in TESTS:
            found = test_set(name, options.count // (10 if name in LONG else 1), part)
            print(f"{part} {name}: {len(found)} prompts")
            wrong += sample.check(f"{part} {name}", [text for conversation in found for text in users(conversation)])
            if name == "tools":
                wrong += of_functions(sample, f"{part} {name}", found)
            for conversation in found:
                for asked, answer in zip(conversation.turns, conversation.turns[1:]):
                    if conversation.task in CLOSED and asked.role == "user" and not answer.content.startswith(OPEN):
                        alone[conversation.task].append(len(sample.wordings[conversation.task, answer.content]))
    for name in JUDGED:
        wrong += sample.check(name, [text for conversation, _ in judged(name) for text in users(conversation)[:1]])
    halves = [{words(turn) for conversation in paraphrases(part) for turn in users(conversation)} for part in ("dev", "test")]
    wrong += [f"asked: of both halves {sorted(halves[0] & halves[1])}"] * bool(halves[0] & halves[1])
    for task in CLOSED:
        kept = sorted(alone[task])
        print(f"{task}: a tested answer has in the sample {kept[0]} wordings at least, {kept[len(kept) // 2]} in the median")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
