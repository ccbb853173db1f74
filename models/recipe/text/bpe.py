"""Byte-level BPE: training, and encoding with a cache of pieces.

Formulas: GPT-2's byte table, merges by rank inside the pieces of the qwen35 pre-tokenizer.
"""

import collections
import heapq
import json

import regex

SPLIT = regex.compile(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
                      r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>",
            "</tool_response>", "<think>", "</think>", "<|mask|>"]
PRINTED = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"}
SPECIAL_SPLIT = regex.compile("(" + "|".join(regex.escape(s) for s in SPECIALS) + ")")


def byte_table() -> list:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {}, 0
    for b in range(256):
        if b in plain:
            table[b] = chr(b)
        else:
            table[b] = chr(256 + extra)
            extra += 1
    return [table[b] for b in range(256)]


BYTES = byte_table()


def train(texts, merges_wanted: int) -> list:
    """The merges, most useful first; stops early when no pair occurs twice."""
    counts: collections.Counter = collections.Counter()
    for text in texts:
        for part in SPECIAL_SPLIT.split(text):
            if part not in SPECIALS:
                counts.update(SPLIT.findall(part))
    counts = {word: n for word, n in counts.items() if n > 1}  # most words that are made up occur once: they only cost time
    words = [[BYTES[b] for b in word.encode()] for word in counts]
    weight = list(counts.values())
    pairs: collections.Counter = collections.Counter()
    where = collections.defaultdict(set)
    for i, word in enumerate(words):
        for pair in zip(word, word[1:]):
            pairs[pair] += weight[i]
            where[pair].add(i)
    merges = []
    heap = [(-n, pair) for pair, n in pairs.items()]  # an entry whose count has changed since is passed over
    heapq.heapify(heap)
    while len(merges) < merges_wanted and heap:
        n, best = heapq.heappop(heap)
        if pairs[best] != -n:
            continue
        if -n < 2:
            break
        merges.append(best)
        changed = set()
        for i in where.pop(best):
            word = words[i]
            for pair in zip(word, word[1:]):
                pairs[pair] -= weight[i]
                changed.add(pair)
            word = words[i] = merged(word, best)
            for pair in zip(word, word[1:]):
                pairs[pair] += weight[i]
                where[pair].add(i)
                changed.add(pair)
        for pair in changed:
            heapq.heappush(heap, (-pairs[pair], pair))
    return merges


def merged(word: list, pair: tuple) -> list:
    out, i = [], 0
    while i < len(word):
        if i + 1 < len(word) and (word[i], word[i + 1]) == pair:
            out.append(word[i] + word[i + 1])
            i += 2
        else:
            out.append(word[i])
            i += 1
    return out


class Tokenizer:
    def __init__(self, merges: list, vocab_size: int):
        self.merges = [tuple(m) for m in merges]
        self.ranks = {m: i for i, m in enumerate(self.merges)}
        self.tokens = BYTES + [a + b for a, b in self.merges]
        assert len(set(self.tokens)) == len(self.tokens) and len(self.tokens) + len(SPECIALS) <= vocab_size
        self.n_plain = len(self.tokens)
        self.tokens = self.tokens + SPECIALS
        self.n_used = len(self.tokens)
        self.tokens += [f"[PAD{i}]" for i in range(self.n_used, vocab_size)]
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.cache: dict = {}

    @staticmethod
    def load(path) -> "Tokenizer":
        data = json.loads(open(path, encoding="utf-8").read())
        return Tokenizer([m.split(" ") for m in data["merges"]], data["vocab_size"])

    @staticmethod
    def of(metadata: dict) -> "Tokenizer":
        """The tokenizer that a GGUF file holds."""
        return Tokenizer([m.split(" ") for m in metadata["tokenizer.ggml.merges"]], len(metadata["tokenizer.ggml.tokens"]))

    def save(self, path) -> None:
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"vocab_size": len(self.tokens), "merges": [" ".join(m) for m in self.merges]}, f, ensure_ascii=False, indent=0)

    def piece(self, text: str) -> list:
        word = [BYTES[b] for b in text.encode()]
        while len(word) > 1:
            best = min(zip(word, word[1:]), key=lambda p: self.ranks.get(p, 1 << 30))
            if best not in self.ranks:
                break
            word = merged(word, best)
        return [self.ids[t] for t in word]

    def encode(self, text: str) -> list:
        out: list = []
        for part in SPECIAL_SPLIT.split(text):
            if part in self.ids and part in SPECIALS:
                out.append(self.ids[part])
                continue
            for word in SPLIT.findall(part):
                ids = self.cache.get(word)
                if ids is None:
                    ids = self.piece(word)
                    if len(self.cache) < 200000:
                        self.cache[word] = ids
                out += ids
        return out

    def decode(self, ids) -> str:
        back = {c: b for b, c in enumerate(BYTES)}
        out, run = "", bytearray()
        for i in ids:
            if i < self.n_plain:
                run += bytes(back[c] for c in self.tokens[i])
            else:
                out += run.decode(errors="replace") + self.tokens[i]
                run = bytearray()
        return out + run.decode(errors="replace")
