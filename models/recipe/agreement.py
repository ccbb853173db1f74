"""Tessera's log probabilities against PyTorch's for the weights of the same file, dequantised, both in f32.

    python3 agreement.py ../tessera-mini.gguf --tessera ../../build/release/tessera [--compute auto]

Every position of 50 short held-out conversations and of four that recall in 1000 and 4000 tokens, and the whole
vocabulary. PyTorch computes on the CPU. With --out the numbers are added to a JSON file.
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
from evaluate import examples
from model import Config, Model
from text.bpe import Tokenizer
from text.corpus import LONG, TESTS

CONVERSATIONS = 50


@torch.no_grad()
def expected(model: Model, w: dict, ids: list) -> np.ndarray:
    padded = torch.zeros(1, -(-len(ids) // 64) * 64, dtype=torch.int64)
    padded[0, :len(ids)] = torch.tensor(ids)
    starts = torch.zeros_like(padded, dtype=torch.bool)
    starts[:, 0] = True
    hidden = model.hidden(w, padded, starts, torch.float32)[0][0, :len(ids)]
    return F.log_softmax(F.linear(hidden, w["output.weight"]).double(), -1).numpy()


def measured(program: str, file: str, compute: str, ids: list, folder: Path) -> np.ndarray:
    out = folder / "logits"
    subprocess.run([program, "logits", file, "--compute", compute, "--ids", ",".join(map(str, ids)), "--out", str(out),
                    "--log-level", "error"], check=True)
    logits = torch.from_numpy(np.fromfile(out, "<f4").reshape(len(ids), -1))
    return F.log_softmax(logits.double(), -1).numpy()


def compare(reference, options, sequences: list) -> dict:
    worst, divergence, same, positions = [], 0.0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for ids, _ in sequences:
            a, b = reference(ids), measured(options.tessera, options.file, options.compute, ids, Path(folder))
            worst.append(float(np.abs(a - b).max()))
            divergence += float((np.exp(a) * (a - b)).sum())
            same += int((a.argmax(-1) == b.argmax(-1)).sum())
            positions += len(ids)
    worst.sort()
    return {"conversations": len(sequences), "positions": positions, "largest": worst[-1], "median": worst[len(worst) // 2],
            "mean_kl": divergence / positions, "same_likeliest": same / positions}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--compute", default="f32", choices=["auto", "f32"])
    parser.add_argument("--out", help="such as ../measured/agreement.json")
    options = parser.parse_args()
    metadata, tensors = gguf.read(options.file)
    tokenizer, tensors = Tokenizer.of(metadata), export_gguf.trained(tensors)
    short = [name for name in TESTS if name not in LONG]
    sets = {"short": [u[-1] for name in short for u in examples(tokenizer, name, 6)][:CONVERSATIONS]}
    sets |= {name: [u[-1] for u in examples(tokenizer, name, 2)] for name in ("recall_1k", "recall_4k")}
    model = Model(Config(), compiled=False)
    w = {name: torch.from_numpy(np.ascontiguousarray(u, np.float32)) for name, u in tensors.items()}
    for name, sequences in sets.items():
        found = compare(lambda ids: expected(model, w, ids), options, sequences)
        print(name, json.dumps(found), flush=True)
        if options.out:
            path = Path(options.out)
            kept = json.loads(path.read_text()) if path.exists() else {}
            kept.setdefault(options.compute, {})[name] = found
            path.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
