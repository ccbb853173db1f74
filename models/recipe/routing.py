"""Routing of held-out text against a profile: skew, and what a placement of half the experts misses.

    python3 routing.py ../tessera-mini.gguf ../tessera-mini.spark.csv [--count N]

The profile is counted on the held-out part "test"; here the text is of the part "dev", so no user turn is in both.
PyTorch computes on the CPU.
"""

import argparse
import json

import numpy as np
import torch

import export_gguf
import gguf
from digests import digests
from model import Config, Model
from text.bpe import Tokenizer
from text.chat import prompt_and_answer
from text.corpus import LONG, TESTS, test_set

SHORTEST = ("recall_1k", "absent")  # of the long texts those that a CPU reads soon


@torch.no_grad()
def routing(model: Model, w: dict, ids: list) -> np.ndarray:
    """How often each expert of each layer was chosen."""
    padded = torch.zeros(1, -(-len(ids) // 64) * 64, dtype=torch.int64)
    padded[0, :len(ids)] = torch.tensor(ids)
    starts = torch.zeros_like(padded, dtype=torch.bool)
    starts[:, 0] = True
    weights = model.hidden(w, padded, starts, torch.float32, keep=True)[3]
    return np.stack([(u[0, :len(ids)] > 0).sum(0).numpy() for u in weights])


def cold_pairs(counts: np.ndarray, kept: np.ndarray) -> float:
    """Share of the chosen (token, expert) pairs whose expert is not kept."""
    return float((1 - np.take_along_axis(counts, kept, 1).sum(1) / counts.sum(1)).mean())


def report(profile: np.ndarray, counts: np.ndarray) -> dict:
    """Skew of the profile, and the share of another text's pairs that miss the half of the experts that a placement
    keeps: those of the lowest numbers, the profile's busiest, and the best for that text."""
    half = profile.shape[1] // 2
    share = -np.sort(-profile / profile.sum(1, keepdims=True), 1)
    first = np.tile(np.arange(half), (len(profile), 1))
    return {"tokens": int(counts[0].sum()) // Config.used,
            "profile_tokens": int(profile[0].sum()) // Config.used,
            "profile_busiest": share[:, 0].round(4).tolist(), "profile_busiest_4": share[:, :4].sum(1).round(4).tolist(),
            "profile_least": share[:, -1].round(5).tolist(), "profile_busiest_half": share[:, :half].sum(1).round(3).tolist(),
            "cold_without_profile": round(cold_pairs(counts, first), 4),
            "cold_with_profile": round(cold_pairs(counts, np.argsort(-profile, 1, kind="stable")[:, :half]), 4),
            "cold_at_best": round(cold_pairs(counts, np.argsort(-counts, 1, kind="stable")[:, :half]), 4)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("profile")
    parser.add_argument("--count", type=int, default=8, help="conversations of each task")
    options = parser.parse_args()
    profile = np.loadtxt(options.profile, delimiter=",", comments="#", dtype=np.int64)
    metadata, tensors = gguf.read(options.file)
    tensors = export_gguf.trained(tensors)
    w = {name: torch.from_numpy(np.ascontiguousarray(u, np.float32)) for name, u in tensors.items()}
    model, tokenizer = Model(Config(), compiled=False), Tokenizer.of(metadata)
    total, tasks = np.zeros_like(profile), {}
    for name in TESTS:
        if name in LONG and name not in SHORTEST:
            continue
        conversations = test_set(name, options.count if name not in LONG else 2, "dev")
        counts = sum(routing(model, w, tokenizer.encode("".join(prompt_and_answer(c)))) for c in conversations)
        tasks[name] = report(profile, counts)["cold_at_best"]
        total = total + counts
    print(json.dumps({"sha256": digests(options.file, options.profile)} | report(profile, total) | {"cold_at_best_of_one_task": tasks}, indent=1))


if __name__ == "__main__":
    main()
