"""Trains the target in phases: python3 train.py --tokenizer FILE --out DIR [--phase polish --start WEIGHTS] [--stop-after SECONDS]

A run that was stopped goes on from its checkpoint when the same command is given again, with the same
batches as if it had not been stopped. Where PyTorch sees several GPUs they share each batch.
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import export_gguf
from batches import Shape, stream
from graphs import Graphs, padded
from model import Config, Model, initial
from optimizer import Optimizer
from ranks import Ranks, processors, run
from text.bpe import Tokenizer

# Recall needs the least practice of all tasks and has the longest texts, so few of its conversations are many of the tokens.
# Every batch has as many tokens, and so takes as much memory.
SHORT, MEDIUM, LONG = Shape(32, 2048, 400, 0.3), Shape(32, 2048, 1400, 0.12), Shape(4, 16384, 15400, 0.2)
HARD, HARD_LONG = Shape(32, 2048, 1400, 0.05, "hard"), Shape(4, 16384, 15400, 0.15, "hard")
LAST, LAST_LONG = Shape(32, 2048, 1400, 0.05, "last"), Shape(4, 16384, 15400, 0.15, "last")


def late_shapes(mix: str, recall_share: float) -> tuple:
    """Of the later phases: short texts, long ones, the longest."""
    return (Shape(32, 2048, 1400, recall_share, mix), Shape(4, 16384, 6000, 0.25, mix), Shape(4, 16384, 15400, 0.15, mix))


FINISH, FINISH_HALF, FINISH_LONG = late_shapes("finish", 0.1)
CALLS, CALLS_HALF, CALLS_LONG = late_shapes("calls", 0.1)
WIDE, WIDE_HALF, WIDE_LONG = late_shapes("wide", 0.15)
LOOK = 25  # steps between two looks at loss and time, for which the host waits
SAVE_SECONDS = 120  # between two checkpoints


@dataclass(frozen=True)
class Phase:
    stages: list  # (steps, kinds of batches that take turns)
    peak_rate: float
    warmup: int
    decay_share: float  # of the steps, at the end
    last_rate: float  # of the peak, which the decay ends at
    balance: list  # (up to this share of the steps, this weight)


PHASES = {
    # Short recall first, then up to the rows' length, then long texts in between. Even routing while the
    # experts specialise, then hardly any pull, so that what they specialised in shows.
    "target": Phase([(500, [SHORT]), (3120, [MEDIUM]), (1180, [MEDIUM, LONG])], 3e-3, 100, 0.6, 1 / 3,
                    [(0.15, 0.005), (1.0, 0.0003)]),
    # Decisions that are rare in even text, and weigh little in its loss, are learned last.
    "polish": Phase([(5800, [HARD] * 4 + [HARD_LONG])], 1e-3, 30, 1.0, 0.0, [(1.0, 0.0003)]),
    "settle": Phase([(4800, [LAST] * 4 + [LAST_LONG])], 6e-4, 30, 1.0, 0.0, [(1.0, 0.0003)]),
    # What misses the aims then, at a rate that what is known survives; it can begin with a file, which is all that is kept of a run.
    "finish": Phase([(8000, [FINISH] * 7 + [FINISH_HALF] * 2 + [FINISH_LONG])], 5e-4, 100, 1.0, 0.0, [(1.0, 0.0003)]),
    # More functions that are made up, and more requests that leave a value out. It moves away from everyday requests, so what
    # goes on is the mean of its weights and those before (average.py).
    "calls": Phase([(7000, [CALLS] * 8 + [CALLS_HALF] + [CALLS_LONG])], 5e-4, 100, 1.0, 0.0, [(1.0, 0.0003)]),
    # From that mean: what came into the text last, lists in more words and texts of mere words.
    "wide": Phase([(5000, [WIDE] * 8 + [WIDE_HALF] + [WIDE_LONG])], 5e-4, 100, 1.0, 0.0, [(1.0, 0.0003)])}


def shapes(phase: Phase, scale: float = 1.0) -> list:
    return [kinds[i % len(kinds)] for steps, kinds in phase.stages for i in range(max(3, int(steps * scale)))]


def sizes_of(batch: np.ndarray) -> tuple:
    """What loss_of needs of a batch, in few sizes: ids, starts of documents, their offsets, what is learned, and which of that is real.

    A row's last token is never followed by a learned one.
    """
    tokens = batch[0].size
    offsets = np.append(np.flatnonzero(batch[2]), tokens).astype(np.int32)
    learned = np.flatnonzero(batch[1])
    step = tokens * 3 // 8
    return (batch[0].astype(np.int64), batch[2] > 0, padded(offsets, 512, tokens), padded(learned, step, 0),
            padded(np.ones(len(learned), np.float32), step, 0))


def loss_of(model: Model, w: dict, ranks: Ranks, ids: Tensor, starts: Tensor, offsets: Tensor, learned: Tensor, real: Tensor) -> Tensor:
    """This GPU's part of loss, balance and accuracy; the parts of all GPUs add up to the batch's means."""
    hidden, balance, _, _ = model.hidden(w, ids, starts, torch.bfloat16, documents=offsets)
    chosen = hidden.flatten(0, 1).index_select(0, learned)
    target = ids.flatten()[learned + 1]
    logits = F.linear(chosen.bfloat16(), w["output.weight"].bfloat16()).float()
    share = real / ranks.sum(real.sum())
    right = (logits.detach().argmax(-1) == target).float()
    losses = F.cross_entropy(logits, target, reduction="none")
    return torch.stack(((losses * share).sum(), balance / ranks.count, (right * share).sum()))


def rate(step: int, total: int, peak: float, warmup: int, decay_share: float, last: float = 0.0) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (last + (1 - last) * min(1.0, (total - step) / (total * decay_share)))


def balance_weight(phase: Phase, step: int, total: int) -> float:
    return next(weight for share, weight in phase.balance if step < share * total)


class Checkpoint:
    """Weights, optimizer and step in one file that is replaced as a whole."""

    def __init__(self, path: Path):
        self.path = path

    def save(self, w: dict, optimizer: Optimizer, step: int, seconds: float) -> None:
        data = {"w": {name: u.detach() for name, u in w.items()}, "optimizer": optimizer.state(), "step": step, "seconds": seconds}
        save_whole(data, self.path)

    def load(self, w: dict, optimizer: Optimizer) -> tuple:
        """(first step, seconds spent before)"""
        if not self.path.exists():
            return 0, 0.0
        data = torch.load(self.path, map_location=next(iter(w.values())).device)
        with torch.no_grad():
            for name, u in w.items():
                u.copy_(data["w"][name])
        optimizer.restore(data["optimizer"])
        return data["step"], data["seconds"]


def log_from(path: Path, first: int):
    """The log to go on with, without the lines that a run wrote after its last checkpoint."""
    kept = [line for line in path.read_text().splitlines(True) if json.loads(line)["step"] < first] if path.exists() else []
    path.write_text("".join(kept))
    return open(path, "a")


def save_whole(data, path: Path) -> None:
    torch.save(data, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def begun(start: str, c: Config, seed: int) -> dict:
    """What a phase begins with: random weights, those of the phase before, or a GGUF's, where only that was kept."""
    if not start:
        return initial(c, seed)
    if start.endswith(".gguf"):
        return {name: torch.from_numpy(u) for name, u in export_gguf.read_weights(start).items()}
    return torch.load(start)


def train(ranks: Ranks, options: argparse.Namespace) -> None:
    begin, out = time.time(), Path(options.out)
    saved = begin
    torch.backends.cuda.matmul.allow_tf32 = True  # for what is left in f32: small products whose results decay and choose
    c, tokenizer = Config(), Tokenizer.load(options.tokenizer)
    model = Model(c)
    w = {name: u.float().cuda().requires_grad_() for name, u in begun(options.start, c, options.seed).items()}
    optimizer, checkpoint = Optimizer(w), Checkpoint(out / "checkpoint.pt")
    first, before = checkpoint.load(w, optimizer)
    phase = PHASES[options.phase]
    plan = shapes(phase, options.scale)
    tokens = sum(shape.rows * shape.length for shape in plan[:first])
    log = log_from(out / "log.jsonl", first) if ranks.first else None

    def step_of(rates: Tensor, *parts: Tensor) -> Tensor:
        found = loss_of(model, w, ranks, *parts)
        (found[0] + rates[1] * found[1]).backward()
        ranks.sum_gradients(w)
        optimizer.step(rates[0])
        return found.detach()

    graphs = Graphs(step_of)
    batches = stream(tokenizer, f"{options.phase}/{options.seed}", plan, options.workers or processors(), first, ranks.rows)
    for step, batch in enumerate(batches, first):
        looked = step % LOOK == 0 or step == len(plan) - 1 or step == first + 1
        if looked and ranks.sum(torch.tensor(float(time.time() - begin > options.stop_after)).cuda()).item() > 0:
            if ranks.first:
                checkpoint.save(w, optimizer, step, before + time.time() - begin)
                print(f"stopped before step {step} of {len(plan)}", flush=True)
            return
        learning = rate(step, len(plan), phase.peak_rate, phase.warmup, phase.decay_share, phase.last_rate)
        found = graphs(np.array([learning, balance_weight(phase, step, len(plan))], np.float32), *sizes_of(batch))
        tokens += plan[step].rows * plan[step].length
        if looked:
            loss, balance, accuracy = ranks.sum(found.clone()).tolist()
            entry = {"step": step, "loss": round(loss, 5), "accuracy": round(accuracy, 5), "balance": round(balance, 4),
                     "seconds": round(before + time.time() - begin, 1), "tokens": tokens}
            if ranks.first:
                log.write(json.dumps(entry) + "\n")
                log.flush()
                if time.time() - saved > SAVE_SECONDS:
                    saved = time.time()
                    checkpoint.save(w, optimizer, step + 1, before + saved - begin)
    if ranks.first:
        done = {"steps": len(plan), "tokens": tokens, "seconds": round(before + time.time() - begin), "gpus": ranks.count}
        (out / "training.json").write_text(json.dumps(done))
        save_whole({name: u.detach().cpu() for name, u in w.items()}, out / "weights.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--phase", choices=PHASES, default="target")
    parser.add_argument("--start", default="", help="weights that the phase begins with, .pt or .gguf; default: random ones")
    parser.add_argument("--workers", type=int, default=0, help="processes that make a GPU's batches; default: its part of the cores")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of steps, for a trial")
    parser.add_argument("--stop-after", type=float, default=1e9, metavar="SECONDS")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    if not (Path(options.out) / "weights.pt").exists():
        run(train, options)


if __name__ == "__main__":
    main()
