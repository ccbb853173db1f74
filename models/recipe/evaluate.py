"""Exports the model in several mixes; scores on the held-out sets, the cost of quantisation, the routing profile.

    python3 evaluate.py WEIGHTS.pt --tokenizer FILE --out DIR [--count N] [--part dev]

A conversation counts when greedy decoding writes exactly the reference at each of its assistant turns: thought,
answer or call, and end; so a tool is chosen, called and its result used in one. Because every step's likeliest
token is compared along the reference, one forward pass a turn decides that. What is judged by its call or the end
of its answer alone (text/judged.py) is decoded.
"""

import argparse
import hashlib
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
from digests import digests
from model import Config, Model
from routing import report as routing_report
from text.bpe import Tokenizer
from text.chat import each_answer, prompt_of
from text.corpus import AIMS, LONG, TESTS, test_set
from text.judged import JUDGED, is_right, judged
from text.tools import by_kind

MIXES = ["q4", "q45", "q5", "q56", "q6", "q8"]  # smallest first
MOST_KL, MOST_LOST = 0.01, 0.005  # of a task's conversations, by quantisation; in small sets one
TOKENS_A_BATCH = 65536
# Of the usual number of conversations. Two of 500 decide whether 98 % is reached, and chance moves five.
SHARES = {"tools": 4, "recall_8k": 0.4, "recall_16k": 0.4, "recall_prose_6k": 0.4}
MOST_WRITTEN = 240  # tokens of an answer that is decoded
CONVERSATIONS = 50  # that quantisation and agreement are measured on


def examples(tokenizer: Tokenizer, name: str, count: int, part: str = "test") -> list:
    """Each conversation's answers: (ids, first position of the answer); an answer ends with <|im_end|>."""
    end = tokenizer.ids["<|im_end|>"]

    def example(prompt: str, answer: str) -> tuple:
        head = tokenizer.encode(prompt)
        return head + tokenizer.encode(answer) + [end], len(head)

    return [[example(*pair) for pair in each_answer(conversation)] for conversation in test_set(name, count, part)]


def answers(conversations: list) -> list:
    return [answer for conversation in conversations for answer in conversation]


def evenly(sets: dict, count: int) -> list:
    """The first conversations of every short set, as many of each."""
    short = [sets[name] for name in TESTS if name not in LONG]
    return [conversation for nth in zip(*short) for conversation in nth][:count]


def made_from(tokenizer: Tokenizer, count: int, part: str) -> str:
    """Changes with everything that the sets depend on."""
    found = hashlib.sha256(repr((tokenizer.merges, count, part)).encode())
    for path in sorted((Path(__file__).parent / "text").iterdir()):
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def all_examples(tokenizer: Tokenizer, count: int, part: str, cache: Path) -> dict:
    """The sequences of every test, made in parallel and kept in `cache`."""
    key = made_from(tokenizer, count, part)
    if cache.exists():
        kept = pickle.loads(cache.read_bytes())
        if kept["key"] == key:
            return kept["sets"]
    jobs = [(tokenizer, name, int(count * SHARES.get(name, 1)), part) for name in TESTS]
    with multiprocessing.get_context("fork").Pool(len(jobs)) as pool:
        sets = dict(zip(TESTS, pool.starmap(examples, jobs, chunksize=1)))
    cache.write_bytes(pickle.dumps({"key": key, "sets": sets}))
    return sets


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
def score(model: Model, w: dict, conversations: list) -> tuple:
    """Which conversations are answered exactly, and the share of right answer tokens."""
    sequences = answers(conversations)
    owners = [i for i, conversation in enumerate(conversations) for _ in conversation]
    right, tokens, good = [True] * len(conversations), 0, 0
    for chosen, ids in batches(sequences):
        hidden = forward(model, w, ids)[0]
        for row, i in enumerate(chosen):
            full, start = sequences[i]
            guess = F.linear(hidden[row, start - 1:len(full) - 1], w["output.weight"]).argmax(-1)
            same = guess == ids[row, start:len(full)]
            right[owners[i]] &= bool(same.all())
            tokens, good = tokens + len(full) - start, good + int(same.sum())
    return right, good / tokens


@torch.no_grad()
def decode(model: Model, w: dict, prompts: list, end: int) -> list:
    """What greedy decoding writes after each prompt. All is computed again for every token: the prompts are few."""
    rows, active = [list(prompt) for prompt in prompts], list(range(len(prompts)))
    for _ in range(MOST_WRITTEN):
        still = []
        for chosen, ids in batches([(rows[i], 0) for i in active]):
            hidden = forward(model, w, ids)[0]
            last = torch.stack([hidden[row, len(rows[active[at]]) - 1] for row, at in enumerate(chosen)])
            for at, token in zip(chosen, F.linear(last, w["output.weight"]).argmax(-1).tolist()):
                if token != end:
                    rows[active[at]].append(token)
                    still.append(active[at])
        active = sorted(still)
        if not active:
            break
    return [row[len(prompt):] for row, prompt in zip(rows, prompts)]


def judge(model: Model, w: dict, tokenizer: Tokenizer, name: str) -> list:
    """Which of a hand-written test are right."""
    found = judged(name)
    prompts = [tokenizer.encode(prompt_of(conversation)) for conversation, _ in found]
    written = decode(model, w, prompts, tokenizer.ids["<|im_end|>"])
    return [is_right(name, tokenizer.decode(ids), wanted) for ids, (_, wanted) in zip(written, found)]


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


def write_profile(counts: np.ndarray, c: Config, path: Path) -> None:
    lines = [f"# hotness table: n_layer={c.layers} n_expert={c.experts} n_expert_used={c.used}",
             "# one row per layer: how often each expert was chosen on held-out text"]
    path.write_text("\n".join(lines + [",".join(map(str, row)) for row in counts]) + "\n")


def load_gguf(path) -> dict:
    return {name: torch.from_numpy(u).cuda() for name, u in export_gguf.read_weights(path).items()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", default="test", choices=["dev", "test"], help="dev while tuning")
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    begin = time.time()
    c, tokenizer = Config(), Tokenizer.load(options.tokenizer)
    cpu = {name: u.float() for name, u in torch.load(options.weights).items()}
    arrays = {name: u.numpy() for name, u in cpu.items()}
    jobs = [(arrays, c, out / f"{mix}.gguf", mix, tokenizer) for mix in MIXES]
    processes = [multiprocessing.get_context("fork").Process(target=export_gguf.export, args=job) for job in jobs]
    for process in processes:
        process.start()
    sets = all_examples(tokenizer, options.count, options.part, out / "tests.pickle")
    for process in processes:
        process.join()
        assert process.exitcode == 0
    print(f"files and test sets in {time.time() - begin:.0f} s", flush=True)

    model = Model(c, compiled=False)
    full = {name: u.cuda() for name, u in cpu.items()}
    pool = answers(evenly(sets, CONVERSATIONS))
    report: dict = {"part": options.part, "kl": {}, "mixes": {}, "scores": {}, "tokens": {}, "tools": {}}
    for mix in MIXES:
        path = out / f"{mix}.gguf"
        report["mixes"][mix] = path.stat().st_size
        report["kl"][mix] = divergence(model, full, load_gguf(path), pool)
        print(mix, report["mixes"][mix], report["kl"][mix], f"{time.time() - begin:.0f} s", flush=True)
    of_full = {name: score(model, full, conversations) for name, conversations in sets.items()}
    print(f"scored in F32, {time.time() - begin:.0f} s", flush=True)
    for chosen in [m for m in MIXES if report["kl"][m]["all"] <= MOST_KL] or MIXES[-1:]:  # the smallest that costs no task much, and no aim
        small, of_small = load_gguf(out / f"{chosen}.gguf"), {}
        for name, conversations in sets.items():
            of_small[name] = score(model, small, conversations)
            before, after = (sum(of[name][0]) / len(conversations) for of in (of_full, of_small))
            lost = before - after
            if lost > max(MOST_LOST, 1 / len(conversations)) or after < AIMS.get(name, 0) <= before:
                print(f"{chosen} loses {lost:.2%} in {name}, {time.time() - begin:.0f} s", flush=True)
                if chosen != MIXES[-1]:
                    break
        if len(of_small) == len(sets):
            break
    report["chosen"] = chosen
    shutil.copy(out / f"{chosen}.gguf", out / "tessera-mini.gguf")
    some = {name: sets[name][:20 if name in LONG else 200] for name in TESTS}
    counts = [routing(model, small, [u[-1] for name in TESTS for u in some[name][half::2]], c) for half in (0, 1)]
    report["routing"] = routing_report(*counts)
    write_profile(counts[0], c, out / "tessera-mini.spark.csv")
    print(json.dumps(report["routing"]), f"{time.time() - begin:.0f} s", flush=True)
    for name in sets:
        for kind, (right, share) in (("full", of_full[name]), ("quantised", of_small[name])):
            if name == "tools":
                report["tools"][kind] = by_kind(right, test_set(name, int(options.count * SHARES[name]), options.part))
            report["scores"].setdefault(name, {})[kind] = [sum(right), len(right)]
            report["tokens"].setdefault(name, {})[kind] = round(share, 6)
        print(name, report["scores"][name], report["tokens"][name], flush=True)
    for name in JUDGED if options.part == "test" else ():
        for kind, weights in (("full", full), ("quantised", small)):
            right = judge(model, weights, tokenizer, name)
            report["scores"].setdefault(name, {})[kind] = [sum(right), len(right)]
        print(name, report["scores"][name], f"{time.time() - begin:.0f} s", flush=True)
    report["sha256"] = digests(out / "tessera-mini.gguf", out / "tessera-mini.spark.csv")
    (out / "scores.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
