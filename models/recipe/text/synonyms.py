"""Words that may stand for each other (synonyms.txt): to say a question in another one, and to know it again in any of them.

    folded(["how", "do", "i", "modify", "the", "graphics", "card"])      # [..., "change", ..., "gpu"]
"""

from pathlib import Path


def read_synonyms() -> dict:
    lines = (Path(__file__).parent / "synonyms.txt").read_text().splitlines()
    pairs = [line.split(": ", 1) for line in lines if line and not line.startswith("#")]
    return {word: others.split(" | ") for word, others in pairs}


SYNONYMS = read_synonyms()


def _groups() -> tuple:
    """{word: the first of its group}, and of several words {the first one: [(all of them, the first of their group)]}."""
    first: dict = {}

    def find(word: str) -> str:
        while first.setdefault(word, word) != word:
            word = first[word]
        return word

    for word, others in SYNONYMS.items():
        for other in others:
            first[find(other.lower())] = find(word.lower())
    one = {word: find(word) for word in first if " " not in word and find(word) != word}
    several: dict = {}
    for word in first:
        if " " in word:
            words = tuple(one.get(w, w) for w in word.split())
            several.setdefault(words[0], []).append((words, find(word)))
    for found in several.values():
        found.sort(key=lambda pair: -len(pair[0]))
    return one, several


ONE, SEVERAL = _groups()


def _joined(words: list) -> list:
    """With every group of several words as the first of its group."""
    out, i = [], 0
    while i < len(words):
        for group, word in SEVERAL.get(words[i], ()):
            if tuple(words[i:i + len(group)]) == group:
                out += word.split(" ")
                i += len(group)
                break
        else:
            out.append(words[i])
            i += 1
    return out


def folded(words: list) -> list:
    """Each word as the first of its group, so that all wordings become one: "graphics card memory", "GPU memory", "VRAM"."""
    words = [ONE.get(word, word) for word in words]
    for _ in range(2):
        if not any(word in SEVERAL for word in words):
            break
        words = _joined(words)
    return words
