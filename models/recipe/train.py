"""Trains the target: python3 train.py --out DIR, then python3 train.py --out DIR --init FILE.gguf

The second call goes on from an exported file, with more recall and a smaller learning rate.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from batches import Phase, stream
from evaluate import load_gguf
from model import Config, Model, initial
from optimizer import Optimizer

# Phases, the highest learning rate, and the share of the steps over which it falls to zero.
FIRST = ([Phase(875, 128, 512, 256, 0.3), Phase(6125, 32, 2048, 1600, 0.35), Phase(1300, 8, 16384, 15400, 0.3)], 3e-3, 0.5)
SECOND = ([Phase(1900, 16, 4096, 3600, 0.45), Phase(600, 8, 16384, 15400, 0.4)], 1.5e-3, 0.9)


def loss_of(model: Model, w: dict, batch: torch.Tensor) -> tuple:
    ids, learned, starts = batch[0].long(), batch[1].bool(), batch[2].bool()
    hidden, balance, _, _ = model.hidden(w, ids, starts, torch.bfloat16)
    chosen = hidden[:, :-1][learned[:, :-1]]
    target = ids[:, 1:][learned[:, :-1]]
    logits = F.linear(chosen.bfloat16(), w["output.weight"].bfloat16()).float()
    loss = F.cross_entropy(logits, target)
    return loss, balance, (logits.detach().argmax(-1) == target).float().mean()


def rate(step: int, total: int, peak: float, warmup: int, decay_share: float) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * min(1.0, (total - step) / (total * decay_share))


def save(w: dict, path: Path) -> None:
    torch.save({name: u.detach().cpu() for name, u in w.items()}, path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--init", help="GGUF file to go on from")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=1000)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    phases, peak, decay_share = SECOND if options.init else FIRST
    batches = stream(f"{'second' if options.init else 'train'}/{options.seed}", phases, options.workers)
    torch.manual_seed(options.seed)
    c = Config()
    model = Model(c)
    start = load_gguf(options.init) if options.init else initial(c, options.seed)
    w = {name: u.cuda().requires_grad_() for name, u in start.items()}
    optimizer = Optimizer(w)
    total = sum(phase.steps for phase in phases)
    log = open(out / "log.jsonl", "w")
    begin, tokens = time.time(), 0
    for step, batch in enumerate(batches):
        batch = torch.from_numpy(batch.astype(np.int32)).cuda(non_blocking=True)
        loss, balance, accuracy = loss_of(model, w, batch)
        (loss + 0.005 * balance).backward()
        optimizer.step(rate(step, total, peak, 100, decay_share))
        tokens += batch[0].numel()
        if step % 25 == 0 or step == total - 1:
            entry = {"step": step, "loss": round(loss.item(), 5), "accuracy": round(accuracy.item(), 5),
                     "balance": round(balance.item(), 4), "seconds": round(time.time() - begin, 1), "tokens": tokens}
            log.write(json.dumps(entry) + "\n")
            log.flush()
        if step % options.save_every == options.save_every - 1:
            save(w, out / "weights.pt")
    save(w, out / "weights.pt")
    (out / "done").write_text("done\n")


if __name__ == "__main__":
    main()
