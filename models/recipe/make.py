"""The whole recipe: python3 make.py --out DIR [--limit SECONDS]

Tokenizer, training, polish, files and scores, drafter; then DIR/files holds what `models/` ships: the files, measured/
and recipe/tokenizer.json, the tokenizer that every stage of this run reads from DIR. Finished stages are not done
again. With a limit, a call ends in time and the next one goes on where it stopped; the result is the same.
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
MEASURED = {"seconds.json": "seconds.json", "scores/scores.json": "scores.json", "drafter/acceptance.json": "acceptance.json",
            "drafter/drafter_log.jsonl": "drafter.jsonl", "target/training.json": "target.json", "target/log.jsonl": "target.jsonl",
            "polish/training.json": "polish.json", "polish/log.jsonl": "polish.jsonl"}
NEEDS = {"tokenizer": 60, "target": 60, "polish": 90, "scores": 170, "drafter": 300}  # seconds that a stage is not begun without
SPARE = 40  # seconds to save a checkpoint and leave


def run(script: str, *arguments) -> None:
    subprocess.run([sys.executable, str(HERE / script), *map(str, arguments)], check=True)


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
    trained, weights, mini = out / "target/weights.pt", out / "polish/weights.pt", out / "scores/tessera-mini.gguf"
    stages = {
        "tokenizer": lambda: run("train_tokenizer.py", tokenizer),
        "target": lambda: run("train.py", *uses, "--out", out / "target", *scale, "--stop-after", left() - SPARE),
        "polish": lambda: run("train.py", *uses, "--out", out / "polish", "--phase", "polish", "--start", trained,
                              *scale, "--stop-after", left() - SPARE),
        "scores": lambda: run("evaluate.py", weights, *uses, "--out", out / "scores", "--count", options.count),
        "drafter": lambda: run("train_drafter.py", mini, "--out", out / "drafter", *scale, "--tests", out / "scores/tests.pickle")}
    ends = {"tokenizer": tokenizer, "target": trained, "polish": weights, "scores": out / "scores/scores.json",
            "drafter": out / "drafter/acceptance.json"}
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
