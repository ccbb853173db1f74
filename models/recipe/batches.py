"""Batches of packed conversations, made by worker processes and taken in a fixed order."""

import multiprocessing
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from text.bpe import Tokenizer
from text.chat import render
from text.corpus import draw, training_conversation
from text.recall import recall

LONG = 8192  # rows for texts of this length begin with a long one, else it would seldom find room
TOKENIZER = Path(__file__).parent / "tokenizer.json"


@dataclass(frozen=True)
class Phase:
    steps: int
    rows: int
    length: int
    longest: int  # tokens of the longest recall text
    recall_share: float


def encode(tokenizer: Tokenizer, conversation) -> tuple:
    """ids, and for each whether the model learns to write it."""
    ids, learned = [], []
    for text, flag in render(conversation):
        part = tokenizer.encode(text)
        ids += part
        learned += [flag] * len(part)
    return ids, learned


def place(out: np.ndarray, row: int, at: int, ids: list, learned: list) -> int:
    end = min(at + len(ids), out.shape[2])
    out[0, row, at:end] = ids[:end - at]
    out[1, row, at:end - 1] = learned[1:end - at]
    out[2, row, at] = 1
    return end


def pack(rng: random.Random, tokenizer: Tokenizer, phase: Phase) -> np.ndarray:
    """[3, rows, length] uint16: ids, whether the next token is learned, whether a conversation starts."""
    out = np.zeros((3, phase.rows, phase.length), np.uint16)
    out[0] = tokenizer.ids["<|endoftext|>"]
    for row in range(phase.rows):
        at, misses = 0, 0
        if phase.length > phase.longest >= LONG and rng.random() < 0.7:
            tokens = int(phase.longest * rng.uniform(0.3, 1))
            at = place(out, row, at, *encode(tokenizer, draw(rng, lambda r: recall(r, tokens), test=False)))
        while at < phase.length - 32 and misses < 4:
            ids, learned = encode(tokenizer, training_conversation(rng, phase.longest, phase.recall_share))
            if at + len(ids) > phase.length:
                misses += 1
                continue
            at = place(out, row, at, ids, learned)
        if at < phase.length:
            out[2, row, at] = 1
    return out


def work(queue, seed: str, phases: list, worker: int, workers: int) -> None:
    tokenizer = Tokenizer.load(TOKENIZER)
    step = 0
    for phase in phases:
        for _ in range(phase.steps):
            if step % workers == worker:
                queue.put(pack(random.Random(f"{seed}/{step}"), tokenizer, phase))
            step += 1


def stream(seed: str, phases: list, workers: int):
    """One batch a step; the same for every number of workers."""
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(maxsize=6) for _ in range(workers)]
    processes = [context.Process(target=work, args=(queue, seed, phases, i, workers), daemon=True)
                 for i, queue in enumerate(queues)]
    for process in processes:
        process.start()
    for step in range(sum(phase.steps for phase in phases)):
        yield queues[step % workers].get()
