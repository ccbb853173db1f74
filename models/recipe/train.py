"""Trains the target: python3 train.py --out DIR [--steps N,N --minutes M]"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from batches import Phase, stream
from model import Config, Model, initial
from optimizer import Optimizer


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
    parser.add_argument("--steps", default="6500,1500")
    parser.add_argument("--peak", type=float, default=3e-3)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=1000)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    short, long = (int(x) for x in options.steps.split(","))
    phases = [Phase(short // 8, 128, 512, 256, 0.3), Phase(short - short // 8, 32, 2048, 1600, 0.35),
              Phase(long, 8, 16384, 15400, 0.3)]
    batches = stream(f"train/{options.seed}", phases, options.workers)
    torch.manual_seed(options.seed)
    c = Config()
    model = Model(c)
    w = {name: u.cuda().requires_grad_() for name, u in initial(c, options.seed).items()}
    optimizer = Optimizer(w)
    total = short + long
    log = open(out / "log.jsonl", "w")
    begin, tokens = time.time(), 0
    for step, batch in enumerate(batches):
        batch = torch.from_numpy(batch.astype(np.int32)).cuda(non_blocking=True)
        loss, balance, accuracy = loss_of(model, w, batch)
        (loss + 0.005 * balance).backward()
        optimizer.step(rate(step, total, options.peak, 100, 0.5))
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
