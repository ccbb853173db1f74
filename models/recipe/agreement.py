"""Tessera's log probabilities against PyTorch's for the weights of the same file, dequantised, both in f32.

    python3 agreement.py ../tessera-mini.gguf --tessera ../../build/release/tessera [--compute auto]

Every position of 50 held-out conversations and the whole vocabulary. PyTorch computes on the CPU.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import export_gguf
import gguf
from batches import TOKENIZER
from evaluate import examples
from model import Config, Model
from text.bpe import Tokenizer
from text.corpus import TESTS

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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--compute", default="f32", choices=["auto", "f32"])
    options = parser.parse_args()
    tokenizer = Tokenizer.load(TOKENIZER)
    tasks = [name for name in TESTS if not name.startswith("recall_")]
    sequences = [s for name in tasks for s in examples(tokenizer, name, 6)][:CONVERSATIONS]
    model = Model(Config(), compiled=False)
    tensors = export_gguf.trained(gguf.read(options.file)[1])
    w = {name: torch.from_numpy(np.ascontiguousarray(u, np.float32)) for name, u in tensors.items()}
    worst, divergence, positions = [], 0.0, 0
    with tempfile.TemporaryDirectory() as folder:
        for ids, _ in sequences:
            a = expected(model, w, ids)
            b = measured(options.tessera, options.file, options.compute, ids, Path(folder))
            worst.append(float(np.abs(a - b).max()))
            divergence += float((np.exp(a) * (a - b)).sum())
            positions += len(ids)
    worst.sort()
    print(f"{len(sequences)} conversations, {positions} positions: largest difference {worst[-1]:.2e}, "
          f"of the median conversation {worst[len(worst) // 2]:.2e}, mean KL {divergence / positions:.2e}")


if __name__ == "__main__":
    main()
