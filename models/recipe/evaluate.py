"""Exports the model in several mixes; scores on the held-out sets, the cost of quantisation, the routing profile.

    python3 evaluate.py WEIGHTS.pt --out DIR [--count N]

An answer counts when greedy decoding writes exactly the reference: thought, answer and end. Because
every step's likeliest token is compared along the reference, one forward pass decides that.
"""

import argparse
import json
import multiprocessing
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import export_gguf
import gguf
from batches import TOKENIZER
from model import Config, Model
from text.bpe import Tokenizer
from text.chat import prompt_and_answer
from text.corpus import TESTS, test_set

MIXES = ["q4", "q45", "q5", "q6", "q8"]  # smallest first
MOST_KL = 0.01
TOKENS_A_BATCH = 65536


def examples(tokenizer: Tokenizer, name: str, count: int) -> list:
    """(ids, first position of the answer); the answer ends with <|im_end|>."""
    out = []
    for conversation in test_set(name, count):
        prompt, answer = prompt_and_answer(conversation)
        head = tokenizer.encode(prompt)
        out.append((head + tokenizer.encode(answer) + [tokenizer.ids["<|im_end|>"]], len(head)))
    return out


def _examples(job: tuple) -> list:
    return examples(Tokenizer.load(TOKENIZER), *job)


def all_examples(count: int, cache: Path) -> dict:
    """The sequences of every test, made in parallel and kept in `cache`; fewer of the longest."""
    if not cache.exists():
        jobs = [(name, count * 2 // 5 if name in ("recall_8k", "recall_16k") else count) for name in TESTS]
        with multiprocessing.get_context("fork").Pool(len(jobs)) as pool:
            made = dict(zip(TESTS, pool.map(_examples, jobs, chunksize=1)))
        cache.write_bytes(pickle.dumps(made))
    return pickle.loads(cache.read_bytes())


def batches(sequences: list):
    """Indices and padded ids [rows, T]; one sequence a row, of similar lengths."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i][0]))
    at = 0
    while at < len(order):
        rows = 1
        while at + rows < len(order):
            length = -(-len(sequences[order[at + rows]][0]) // 64) * 64
            if length * (rows + 1) > TOKENS_A_BATCH:
                break
            rows += 1
        chosen = order[at:at + rows]
        at += rows
        length = -(-max(len(sequences[i][0]) for i in chosen) // 64) * 64
        ids = torch.zeros(rows, length, dtype=torch.int64)
        for row, i in enumerate(chosen):
            ids[row, :len(sequences[i][0])] = torch.tensor(sequences[i][0])
        yield chosen, ids.cuda()


def forward(model: Model, w: dict, ids: torch.Tensor, dtype=torch.float32, keep: bool = False):
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[:, 0] = True
    return model.hidden(w, ids, starts, dtype, keep)


@torch.no_grad()
def score(model: Model, w: dict, sequences: list) -> tuple:
    """Which sequences are answered exactly, and the share of right answer tokens."""
    right, tokens, good = [False] * len(sequences), 0, 0
    for chosen, ids in batches(sequences):
        hidden = forward(model, w, ids)[0]
        for row, i in enumerate(chosen):
            full, start = sequences[i]
            guess = F.linear(hidden[row, start - 1:len(full) - 1], w["output.weight"]).argmax(-1)
            same = guess == ids[row, start:len(full)]
            right[i], tokens, good = bool(same.all()), tokens + len(full) - start, good + int(same.sum())
    return right, good / tokens


@torch.no_grad()
def divergence(model: Model, full: dict, other: dict, sequences: list) -> dict:
    """Mean KL(full || other) over all positions and over the answers'."""
    sums = np.zeros(4)
    for chosen, ids in batches(sequences):
        a, b = (F.log_softmax(F.linear(forward(model, w, ids)[0], w["output.weight"]), -1) for w in (full, other))
        kl = (a.exp() * (a - b)).sum(-1)
        for row, i in enumerate(chosen):
            ids_i, start = sequences[i]
            answer = kl[row, start - 1:len(ids_i) - 1]
            sums += (kl[row, :len(ids_i)].sum().item(), len(ids_i), answer.sum().item(), len(answer))
    return {"all": sums[0] / sums[1], "answers": sums[2] / sums[3]}


@torch.no_grad()
def routing(model: Model, w: dict, sequences: list, c: Config) -> np.ndarray:
    """How often each expert of each layer was chosen."""
    counts = np.zeros((c.layers, c.experts), np.int64)
    for chosen, ids in batches(sequences):
        weights = forward(model, w, ids, keep=True)[3]
        real = torch.zeros_like(ids, dtype=torch.bool)
        for row, i in enumerate(chosen):
            real[row, :len(sequences[i][0])] = True
        for layer, u in enumerate(weights):
            counts[layer] += (u[real] > 0).sum(0).cpu().numpy()
    return counts


def routing_report(profile: np.ndarray, other: np.ndarray, c: Config) -> dict:
    """Skew of the profile, and the share of another text's pairs that miss the half of the experts that a placement
    keeps: those of the lowest numbers, and the profile's busiest."""
    share = np.sort(profile / profile.sum(1, keepdims=True), 1)[:, ::-1]
    half = c.experts // 2
    busiest = np.argsort(-profile, 1, kind="stable")[:, :half]
    kept = {"without": np.tile(np.arange(half), (c.layers, 1)), "with": busiest}
    cold = {kind: 1 - np.take_along_axis(other, chosen, 1).sum(1) / other.sum(1) for kind, chosen in kept.items()}
    return {"tokens": int(profile[0].sum() // c.used), "other_tokens": int(other[0].sum() // c.used),
            "busiest_share": share[:, 0].round(4).tolist(), "top4_share": share[:, :4].sum(1).round(4).tolist(),
            "least_share": share[:, -1].round(5).tolist(),
            "cold_pairs_of_half": {kind: {"mean": round(float(u.mean()), 4), "layers": u.round(4).tolist()} for kind, u in cold.items()}}


def write_profile(counts: np.ndarray, c: Config, path: Path) -> None:
    lines = [f"# hotness table: n_layer={c.layers} n_expert={c.experts} n_expert_used={c.used}",
             "# one row per layer: how often each expert was chosen on held-out text"]
    path.write_text("\n".join(lines + [",".join(map(str, row)) for row in counts]) + "\n")


@torch.no_grad()
def write_logits(model: Model, w: dict, sequences: list, path: Path, last: int = 12) -> None:
    """Log probabilities of the last positions of each sequence, to compare with Tessera's."""
    data = {}
    for n, (ids, _) in enumerate(sequences):
        padded = torch.zeros(1, -(-len(ids) // 64) * 64, dtype=torch.int64)
        padded[0, :len(ids)] = torch.tensor(ids)
        hidden = forward(model, w, padded.cuda())[0][0, len(ids) - last:len(ids)]
        data[f"ids{n}"] = np.array(ids, np.int32)
        data[f"logp{n}"] = F.log_softmax(F.linear(hidden, w["output.weight"]), -1).cpu().numpy()
    np.savez(path, **data)


def load_gguf(path) -> dict:
    return {name: torch.from_numpy(np.ascontiguousarray(u, np.float32)).cuda()
            for name, u in export_gguf.trained(gguf.read(path)[1]).items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--out", required=True)
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    c = Config()
    cpu = {name: u.float() for name, u in torch.load(options.weights).items()}
    arrays = {name: u.numpy() for name, u in cpu.items()}
    jobs = [(arrays, c, out / f"{mix}.gguf", mix) for mix in MIXES]
    processes = [multiprocessing.get_context("fork").Process(target=export_gguf.export, args=job) for job in jobs]
    for process in processes:
        process.start()
    sets = all_examples(options.count, out / "tests.pickle")
    for process in processes:
        process.join()
        assert process.exitcode == 0
    print(f"files and test sets in {time.time() - begin:.0f} s", flush=True)

    model = Model(c, compiled=False)
    full = {name: u.cuda() for name, u in cpu.items()}
    pool = [s for name in TESTS if not name.startswith("recall_") for s in sets[name][:6]][:50]
    report: dict = {"kl": {}, "mixes": {}, "scores": {}, "tokens": {}}
    for mix in MIXES:
        path = out / f"{mix}.gguf"
        report["mixes"][mix] = path.stat().st_size
        report["kl"][mix] = divergence(model, full, load_gguf(path), pool)
        print(mix, report["mixes"][mix], report["kl"][mix], f"{time.time() - begin:.0f} s", flush=True)
    chosen = next((m for m in MIXES if report["kl"][m]["all"] <= MOST_KL), MIXES[-1])
    report["chosen"] = chosen
    shutil.copy(out / f"{chosen}.gguf", out / "tessera-mini.gguf")
    small = load_gguf(out / f"{chosen}.gguf")
    write_logits(model, small, pool, out / "logits.npz")
    counts = [routing(model, small, [s for name in TESTS for s in part(sets[name], name)], c) for part in (
        lambda u, name: u[:100] if not name.startswith("recall_") else u[:10],
        lambda u, name: u[100:200] if not name.startswith("recall_") else u[10:20])]
    report["routing"] = routing_report(*counts, c)
    write_profile(counts[0], c, out / "tessera-mini.spark.csv")
    print(json.dumps(report["routing"]), f"{time.time() - begin:.0f} s", flush=True)
    for name, sequences in sets.items():
        for kind, w in (("full", full), ("quantised", small)):
            right, share = score(model, w, sequences)
            report["scores"].setdefault(name, {})[kind] = [sum(right), len(right)]
            report["tokens"].setdefault(name, {})[kind] = round(share, 6)
        print(name, report["scores"][name], report["tokens"][name], f"{time.time() - begin:.0f} s", flush=True)
    (out / "scores.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
