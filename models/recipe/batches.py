"""Batches of packed conversations, made by worker processes and taken in a fixed order."""

import multiprocessing
from dataclasses import dataclass

import numpy as np

from text.bpe import Tokenizer
from text.chat import render
from text.corpus import cut, draw, training_conversation
from text.recall import recall
from text.words import dice

LONG = 8192  # rows for texts of this length begin with a long one, else it would seldom find room


@dataclass(frozen=True)
class Shape:
    """What one batch is like."""

    rows: int
    length: int
    longest: int  # tokens of the longest recall text
    recall_share: float
    mix: str = "even"  # of corpus.MIXES


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


def pack(seed: str, tokenizer: Tokenizer, shape: Shape, rows: range) -> np.ndarray:
    """[3, rows, length] uint16: ids, whether the next token is learned, whether a conversation starts. Each row has dice of its own."""
    out = np.zeros((3, len(rows), shape.length), np.uint16)
    out[0] = tokenizer.ids["<|endoftext|>"]
    for row, drawn in enumerate(rows):
        rng, at, misses = dice(f"{seed}/{drawn}"), 0, 0
        if shape.length > shape.longest >= LONG and rng.random() < 0.7:
            tokens = int(shape.longest * rng.uniform(0.3, 1))
            at = place(out, row, at, *encode(tokenizer, cut(rng, draw(rng, lambda r: recall(r, tokens, hard=shape.mix != "even")))))
        while at < shape.length - 32 and misses < 4:
            ids, learned = encode(tokenizer, training_conversation(rng, shape.longest, shape.recall_share, shape.mix))
            if at + len(ids) > shape.length:
                misses += 1
                continue
            at = place(out, row, at, ids, learned)
        if at < shape.length:
            out[2, row, at] = 1
    return out


def work(queue, tokenizer: Tokenizer, seed: str, shapes: list, rows_of, steps: range) -> None:
    for step in steps:
        queue.put(pack(f"{seed}/{step}", tokenizer, shapes[step], rows_of(shapes[step].rows)))


def stream(tokenizer: Tokenizer, seed: str, shapes: list, workers: int, first: int = 0, rows_of=range):
    """The batches of the steps from `first` on, one for each shape, the same for every number of workers; of each those
    of its rows that `rows_of` takes from their number."""
    context = multiprocessing.get_context("fork")
    queues = [context.Queue(maxsize=6) for _ in range(workers)]
    processes = [context.Process(target=work, args=(queue, tokenizer, seed, shapes, rows_of, range(first + i, len(shapes), workers)), daemon=True)
                 for i, queue in enumerate(queues)]
    for process in processes:
        process.start()
    for step in range(first, len(shapes)):
        yield queues[(step - first) % workers].get()
