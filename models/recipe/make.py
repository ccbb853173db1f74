"""The whole recipe: python3 make.py --out DIR [--limit SECONDS]

Tokenizer, training in phases, files and scores, drafter; then DIR/files holds what `models/` ships: the files, measured/
and recipe/tokenizer.json, the tokenizer that every stage of this run reads from DIR. Finished stages are not done
again. With a limit, a call ends in time and the next one goes on where it stopped; the result is the same.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
SHIPPED = {"scores": ["tessera-mini.gguf", "tessera-mini.spark.csv"], "drafter": ["tessera-mini-dflash.gguf"]}
LAST_SEEDS = (2, 3)
TRAININGS = ["target", "polish", "settle", *(f"last-{seed}" for seed in LAST_SEEDS)]
MEASURED = {"seconds.json": "seconds.json", "scores/scores.json": "scores.json", "drafter/acceptance.json": "acceptance.json",
            "drafter/drafter_log.jsonl": "drafter.jsonl"}
MEASURED |= {f"{name}/training.json": f"{name}.json" for name in TRAININGS} | {f"{name}/log.jsonl": f"{name}.jsonl" for name in TRAININGS}
# Seconds that a stage is not begun without
NEEDS = {"tokenizer": 60, "target": 150, "polish": 150, "settle": 150, "last": 150, "scores": 210, "drafter": 300}
SPARE = 40  # seconds to save a checkpoint and leave


def command(script: str, *arguments) -> list:
    return [sys.executable, str(HERE / script), *map(str, arguments)]


def run(script: str, *arguments) -> None:
    subprocess.run(command(script, *arguments), check=True)


def each_on_one_gpu(jobs: list, command_of) -> None:
    """command_of(job, share of the cores) for every job: at once where there are as many GPUs, else one after another."""
    count = torch.cuda.device_count()
    if count < len(jobs):
        for job in jobs:
            subprocess.run(command_of(job, 1.0), env=os.environ | {"CUDA_VISIBLE_DEVICES": visible(count)[0]}, check=True)
        return
    running = [subprocess.Popen(command_of(job, 1 / len(jobs)), env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu})
               for job, gpu in zip(jobs, visible(count))]
    if any([process.wait() for process in running]):
        raise SystemExit("a training failed")


def visible(count: int) -> list:
    return os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=1e9, metavar="SECONDS", help="stop in time, to go on in another call")
    parser.add_argument("--scale", type=float, default=1.0, help="of the training steps, for a trial")
    parser.add_argument("--count", type=int, default=500, help="conversations of a held-out set")
    options = parser.parse_args()
    begin, out = time.time(), options.out
    out.mkdir(parents=True, exist_ok=True)
    spent = out / "seconds.json"

    def left() -> float:
        return options.limit - (time.time() - begin)

    tokenizer = out / "tokenizer.json"
    scale, uses = ["--scale", options.scale], ["--tokenizer", tokenizer]
    trained, polished, settled = (out / phase / "weights.pt" for phase in ("target", "polish", "settle"))
    lasts, weights = {seed: out / f"last-{seed}/weights.pt" for seed in LAST_SEEDS}, out / "weights.pt"
    mini = out / "scores/tessera-mini.gguf"

    def train(phase: str, *start) -> None:
        run("train.py", *uses, "--out", out / phase, "--phase", phase, *start, *scale, "--stop-after", left() - SPARE)

    def last_training(seed: int, share: float) -> list:
        workers = max(1, int((len(os.sched_getaffinity(0)) - 2) * share))
        return command("train.py", *uses, "--out", lasts[seed].parent, "--phase", "last", "--seed", seed, "--start", settled, *scale,
                       "--workers", workers, "--stop-after", left() - SPARE)

    def last() -> None:
        each_on_one_gpu(LAST_SEEDS, last_training)
        if all(path.exists() for path in lasts.values()):
            run("average.py", *lasts.values(), "--out", weights)

    stages = {
        "tokenizer": lambda: run("train_tokenizer.py", tokenizer),
        "target": lambda: train("target"),
        "polish": lambda: train("polish", "--start", trained),
        "settle": lambda: train("settle", "--start", polished),
        "last": last,
        "scores": lambda: run("evaluate.py", weights, *uses, "--out", out / "scores", "--count", options.count),
        "drafter": lambda: run("train_drafter.py", mini, "--out", out / "drafter", *scale, "--tests", out / "scores/tests.pickle")}
    ends = {"tokenizer": tokenizer, "target": trained, "polish": polished, "settle": settled, "last": weights,
            "scores": out / "scores/scores.json", "drafter": out / "drafter/acceptance.json"}
    for name, stage in stages.items():
        seconds = json.loads(spent.read_text()) if spent.exists() else {}
        done = out / f"{name}.done"
        if done.exists():
            continue
        if left() < NEEDS[name]:
            print(f"{name} is next; give the same command again", flush=True)
            return
        start = time.time()
        stage()
        seconds[name] = round(seconds.get(name, 0) + time.time() - start)
        spent.write_text(json.dumps(seconds) + "\n")
        print(f"{name}: {seconds[name]} s", flush=True)
        if not ends[name].exists():
            print(f"{name} goes on when the same command is given again", flush=True)
            return
        done.touch()
    files = out / "files"
    files.mkdir(exist_ok=True)
    for folder, names in SHIPPED.items():
        for name in names:
            shutil.copy(out / folder / name, files / name)
    for folder, copies in {"measured": MEASURED, "recipe": {"tokenizer.json": "tokenizer.json"}}.items():
        (files / folder).mkdir(exist_ok=True)
        for source, target in copies.items():
            shutil.copy(out / source, files / folder / target)
    print(f"{files} is complete: {sum(json.loads(spent.read_text()).values())} s", flush=True)


if __name__ == "__main__":
    main()
