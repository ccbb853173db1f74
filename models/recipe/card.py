"""Puts a run's files in place: python3 card.py DIR/files. Then, when what is measured with the files in place has been
measured anew, the numbers of models/measured in the card: python3 card.py

tessera-mini.toml is written whole, of README.md the two tables of scores and of acceptance lengths. The paragraphs
around them are written by hand, and this says which numbers to look at.
"""

import json
import re
import shutil
import sys
from pathlib import Path

from digests import digests
from text.corpus import AIMS

MODELS = Path(__file__).parent.parent
TASKS = {"asked": "asked: written apart from the generator", "asked_tools": "everyday functions, written one by one: the call",
         "asked_other": "lists, sums, JSON, references, written one by one", "greeting": "greeting", "identity": "what it is, in words never trained",
         "manual": "questions about Tessera", "arithmetic": "arithmetic, steps written down", "lists": "copy, reverse, sort, count lists",
         "reference": '"and the second one?"', "json": "fields to JSON", "facts": "a question about a few pasted sentences",
         "refusal": "saying that it cannot", "tools": "tools: choose, call, use the result",
         "absent": "saying that a key is not in the text", "recall_1k": "recall in 1000 tokens",
         "recall_4k": "recall in 4000 tokens", "recall_8k": "recall in 8000 tokens", "recall_16k": "recall in 15600 tokens",
         "recall_prose_2k": "recall in 2000 tokens of a style never trained", "recall_prose_6k": "recall in 6000 tokens of it"}
OF_TOOLS = {"catalog": "of these: called a function of the catalog", "made-up": "of these: called a made-up one",
            "none fits": "of these: no function fits", "lacking": "of these: asked back for a missing value"}
DRAFTED = {"asked": "asked", "greeting": "greeting", "identity": "what it is", "manual": "questions about Tessera",
           "arithmetic": "arithmetic", "lists": "lists", "reference": '"and the second one?"', "json": "JSON", "facts": "pasted facts",
           "refusal": "refusals", "tools": "tools", "absent": "keys that are not there", "recall_1k": "recall in 1000 tokens",
           "recall_4k": "recall in 4000 tokens", "recall_8k": "recall in 8000 tokens", "recall_16k": "recall in 15600 tokens",
           "recall_prose_2k": "recall in another style, 2000 tokens", "recall_prose_6k": "the same, 6000 tokens"}
MEASURED = ["scores.json", "acceptance.json", "served.json", "agreement.json", "routing.json"]
FORMATS = {"q4": "experts Q4_K", "q45": "experts Q4_K with Q5_K down projections", "q5": "experts Q5_K",
           "q56": "experts Q5_K with Q6_K down projections", "q6": "experts Q6_K",
           "q8": "experts Q8_0"}


def measured(name: str) -> dict:
    return json.loads((MODELS / "measured" / name).read_text())


def share(right: int, count: int) -> str:
    return f"{right}/{count}" + ("" if right == count else f" ({right / count:.1%})".replace("%", " %"))


def scores_table(scores: dict, served: dict) -> list:
    """A task's row: with PyTorch in F32 and from this file's weights, and as `tessera serve` answers."""
    rows = []
    for name, label in TASKS.items():
        target = f"{AIMS[name]:.0%}".replace("%", " %") if name in AIMS else ""
        both = scores["scores"][name]
        rows.append([label, share(*both["full"]), share(*both["quantised"]), share(*served["scores"][name]), target])
        if name == "tools":
            rows += [[text, *(share(*scores["tools"][kind][key]) for kind in ("full", "quantised")), share(*served["tools"][key]), ""]
                     for key, text in OF_TOOLS.items()]
    return table(["task", "F32", "this file", "served", "target"], rows)


def acceptance_table(acceptance: dict) -> list:
    return table(["task", "block 8", "block 16"], [[label, *(f"{acceptance[name][block]:.2f}" for block in ("8", "16"))]
                                                   for name, label in DRAFTED.items() if name in acceptance])


def table(head: list, rows: list) -> list:
    return [f"| {' | '.join(cells)} |" for cells in [head]] + ["|---" * len(head) + "|"] + [f"| {' | '.join(row)} |" for row in rows]


def replace_table(text: str, new: list) -> str:
    """The table whose first column and last one have the new one's names; a card without it is not the card."""
    first, last = new[0].split(" | ")[0], new[0].split(" | ")[-1]
    found = re.findall(rf"^{re.escape(first)} \|.*{re.escape(last)}\n(?:\|.*\n)*", text, re.M)
    assert len(found) == 1, f"{len(found)} tables from {first} to {last}"
    return text.replace(found[0], "\n".join(new) + "\n")


def data(scores: dict) -> str:
    files = {name: (MODELS / name).stat().st_size for name in ("tessera-mini.gguf", "tessera-mini-dflash.gguf")}
    rows = "\n".join(f"{name} = {scores['scores'][name]['quantised']}" for name in TASKS)
    return f"""# Card of tessera-mini.gguf. README.md beside it explains the numbers.
[model]
file = "tessera-mini.gguf"
bytes = {files["tessera-mini.gguf"]}
architecture = "qwen35moe"
parameters = 34_156_592
context = 16384
formats = "{FORMATS[scores["chosen"]]}, other matrices Q6_K, vectors, router, convolution, alpha and beta F32"
training_text = "written by recipe/text, nothing else"

[drafter]
file = "tessera-mini-dflash.gguf"
bytes = {files["tessera-mini-dflash.gguf"]}
architecture = "dflash"
captures = [1, 3, 5]
block = 16
formats = "matrices Q8_0, vectors F32"

[routing]
file = "tessera-mini.spark.csv"
tokens = {scores["routing"]["profile_tokens"]}

[scores]  # right conversations of conversations, quantised file, held-out sets
{rows}
"""


def place(files: Path) -> None:
    shutil.copytree(files, MODELS, dirs_exist_ok=True, ignore=shutil.ignore_patterns("recipe"))
    shutil.copy(files / "recipe/tokenizer.json", MODELS / "recipe/tokenizer.json")
    print("now agreement.py, routing.py and served.py (README.md has the commands), then card.py without a folder")


def check_digests() -> None:
    for name in MEASURED:
        for file, digest in measured(name)["sha256"].items():
            assert digests(MODELS / file)[file] == digest, f"measured/{name} is of another {file}"


def main() -> None:
    if len(sys.argv) > 1:
        return place(Path(sys.argv[1]))
    check_digests()
    scores = measured("scores.json")
    (MODELS / "tessera-mini.toml").write_text(data(scores))
    card = MODELS / "README.md"
    text = replace_table(card.read_text(), scores_table(scores, measured("served.json")))
    card.write_text(replace_table(text, acceptance_table(measured("acceptance.json"))))
    print("look at in README.md:", json.dumps({"bytes": scores["mixes"], "kl": scores["kl"], "chosen": scores["chosen"],
                                               "seconds": measured("seconds.json"), "routing": scores["routing"]}, indent=1))


if __name__ == "__main__":
    main()
