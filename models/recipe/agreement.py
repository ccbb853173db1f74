"""Tessera's log probabilities against PyTorch's for the weights of the same file, dequantised, which PyTorch computes with in f32.

    python3 agreement.py ../tessera-mini.gguf --tessera ../../build/release/tessera [--compute f32 auto] [--out FILE.json]

Every position of 50 short held-out conversations and of four that recall in 1000 and 4000 tokens, and the whole
vocabulary. PyTorch computes on the CPU. With --out the numbers are added to a JSON file.

Two ways to round can choose another expert where the router gives two nearly the same probability: `lead` is by how
much the last expert chosen led the first one left out, at its smallest up to the first position that differs by MOST.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import export_gguf
import gguf
from digests import digests
from evaluate import CONVERSATIONS, evenly, examples
from model import Config, Model
from text.bpe import Tokenizer
from text.corpus import LONG, TESTS

MOST = 1e-3


class Leads:
    """Routes as the model does, and keeps each position's smallest lead of a chosen expert."""

    def __init__(self, model: Model):
        self.route, model.experts.route = model.experts.route, self

    def __call__(self, x: torch.Tensor, p: dict, c: Config) -> tuple:
        routed = self.route(x, p, c)
        best = torch.softmax(F.linear(routed[0], p["ffn_gate_inp.weight"]), -1).topk(c.used + 1, -1).values
        self.smallest = torch.minimum(self.smallest, best[0, :, c.used - 1] - best[0, :, c.used])
        return routed


@torch.no_grad()
def expected(model: Model, leads: Leads, w: dict, ids: list) -> tuple:
    """Log probabilities, and the smallest lead of each position."""
    padded = torch.zeros(1, -(-len(ids) // 64) * 64, dtype=torch.int64)
    padded[0, :len(ids)] = torch.tensor(ids)
    starts = torch.zeros_like(padded, dtype=torch.bool)
    starts[:, 0] = True
    leads.smallest = torch.ones(padded.shape[1])
    hidden = model.hidden(w, padded, starts, torch.float32)[0][0, :len(ids)]
    return F.log_softmax(F.linear(hidden, w["output.weight"]).double(), -1).numpy(), leads.smallest.numpy()


def measured(program: str, file: str, compute: str, ids: list, folder: Path) -> np.ndarray:
    out = folder / "logits"
    subprocess.run([program, "logits", file, "--compute", compute, "--ids", ",".join(map(str, ids)), "--out", str(out),
                    "--log-level", "error"], check=True)
    logits = torch.from_numpy(np.fromfile(out, "<f4").reshape(len(ids), -1))
    return F.log_softmax(logits.double(), -1).numpy()


class Comparison:
    def __init__(self):
        self.worst: list = []
        self.divergence, self.same, self.positions, self.apart, self.lead = 0.0, 0, 0, 0, []

    def add(self, a: np.ndarray, b: np.ndarray, leads: np.ndarray) -> None:
        difference = np.abs(a - b).max(-1)
        self.worst.append(float(difference.max()))
        self.divergence += float((np.exp(a) * (a - b)).sum())
        self.same += int((a.argmax(-1) == b.argmax(-1)).sum())
        self.positions += len(a)
        over = np.flatnonzero(difference > MOST)
        if len(over):
            self.apart += len(over)
            self.lead.append(float(leads[:over[0] + 1].min()))

    def report(self) -> dict:
        worst = sorted(self.worst)
        return {"conversations": len(worst), "positions": self.positions, "largest": worst[-1], "median": worst[len(worst) // 2],
                "within": sum(x <= MOST for x in worst), "positions_over": self.apart, "leads_there": sorted(self.lead)[-3:],
                "mean_kl": self.divergence / self.positions, "same_likeliest": self.same / self.positions}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--compute", nargs="+", default=["f32", "auto"], choices=["auto", "f32"])
    parser.add_argument("--out", help="such as ../measured/agreement.json")
    options = parser.parse_args()
    metadata, tensors = gguf.read(options.file)
    tokenizer, tensors = Tokenizer.of(metadata), export_gguf.trained(tensors)
    short = [name for name in TESTS if name not in LONG]
    each = -(-CONVERSATIONS // len(short))
    sets = {"short": [u[-1] for u in evenly({name: examples(tokenizer, name, each) for name in short}, CONVERSATIONS)]}
    sets |= {name: [u[-1] for u in examples(tokenizer, name, 2)] for name in ("recall_1k", "recall_4k")}
    model = Model(Config(), compiled=False)
    w = {name: torch.from_numpy(np.ascontiguousarray(u, np.float32)) for name, u in tensors.items()}
    leads = Leads(model)
    for name, sequences in sets.items():
        comparisons = {compute: Comparison() for compute in options.compute}
        with tempfile.TemporaryDirectory() as folder:
            for ids, _ in sequences:
                reference, lead = expected(model, leads, w, ids)
                for compute, comparison in comparisons.items():
                    comparison.add(reference, measured(options.tessera, options.file, compute, ids, Path(folder)), lead)
        for compute, comparison in comparisons.items():
            found = comparison.report()
            print(compute, name, json.dumps(found), flush=True)
            if options.out:
                path = Path(options.out)
                kept = json.loads(path.read_text()) if path.exists() else {}
                if kept.get("sha256") != digests(options.file):
                    kept = {"sha256": digests(options.file)}
                kept.setdefault(compute, {})[name] = found
                path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
