"""The whole recipe: python3 make.py --out DIR [--limit SECONDS]

Tokenizer, training in phases (the last one begins with the mean of the two before), files and scores, drafter; then
DIR/files holds what `models/` ships: the files, measured/ and recipe/tokenizer.json, the tokenizer that every stage of
this run reads from DIR. Finished stages are not done again. With a limit, a call ends in time and the next one goes on
where it stopped; the result is the same.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SHIPPED = {"scores": ["tessera-mini.gguf", "tessera-mini.spark.csv"], "drafter": ["tessera-mini-dflash.gguf"]}
TRAININGS = ["target", "polish", "settle", "finish", "calls", "wide"]
MEASURED = {"seconds.json": "seconds.json", "scores/scores.json": "scores.json", "drafter/acceptance.json": "acceptance.json",
            "drafter/drafter_log.jsonl": "drafter.jsonl"}
MEASURED |= {f"{name}/training.json": f"{name}.json" for name in TRAININGS} | {f"{name}/log.jsonl": f"{name}.jsonl" for name in TRAININGS}
# Seconds that a stage is not begun without
NEEDS = {"tokenizer": 60, "target": 150, "polish": 150, "settle": 150, "finish": 150, "calls": 150, "mean": 60, "wide": 150, "scores": 210,
         "drafter": 300}
SPARE = 40  # seconds to save a checkpoint and leave


def command(script: str, *arguments) -> list:
    return [sys.executable, str(HERE / script), *map(str, arguments)]


def run(script: str, *arguments) -> None:
    subprocess.run(command(script, *arguments), check=True)


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
    weights = {phase: out / phase / "weights.pt" for phase in TRAININGS}
    mean = out / "mean.pt"
    mini = out / "scores/tessera-mini.gguf"

    def train(phase: str, *start) -> None:
        run("train.py", *uses, "--out", out / phase, "--phase", phase, *start, *scale, "--stop-after", left() - SPARE)

    stages = {
        "tokenizer": lambda: run("train_tokenizer.py", tokenizer),
        "target": lambda: train("target"),
        "polish": lambda: train("polish", "--start", weights["target"]),
        "settle": lambda: train("settle", "--start", weights["polish"]),
        "finish": lambda: train("finish", "--start", weights["settle"]),
        "calls": lambda: train("calls", "--start", weights["finish"]),
        "mean": lambda: run("average.py", weights["finish"], weights["calls"], mean),
        "wide": lambda: train("wide", "--start", mean),
        "scores": lambda: run("evaluate.py", weights["wide"], *uses, "--out", out / "scores", "--count", options.count),
        "drafter": lambda: run("train_drafter.py", mini, "--out", out / "drafter", *scale, "--tests", out / "scores/tests.pickle")}
    ends = weights | {"tokenizer": tokenizer, "mean": mean, "scores": out / "scores/scores.json", "drafter": out / "drafter/acceptance.json"}
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
