"""Writes options.tsv from the program's option table: python3 -m text.read_options ../../src/cli/options_*.h"""

import re
import sys
from pathlib import Path

COMMANDS = ["serve", "run", "plan", "bench", "inspect", "tokenize", "detokenize", "template", "logits", "synth", "worker",
            "calibrate", "devices"]
MODEL = ["serve", "run", "logits", "plan", "bench", "calibrate"]
GROUPS = {"kModelCommands": MODEL, "kSamplingCommands": ["serve", "run"], "kAllCommands": COMMANDS}
COLUMNS = ["flags", "key", "fallback", "commands", "value", "help", "choices"]


def commands(text: str) -> str:
    names: list = []
    for part in text.split("|"):
        part = part.strip()
        names += GROUPS.get(part) or [part.removeprefix("k").lower()]
    assert all(name in COMMANDS for name in names), text
    return " ".join(names)


def main() -> None:
    source = "".join(Path(name).read_text() for name in sys.argv[1:])
    lines = ["\t".join(["flags", "key", "default", "commands", "value", "help", "choices"])]
    for entry in re.findall(r"\{(\.key = .*?)\},\n", source, re.S):
        fields = {name: "".join(re.findall(r'"(.*?)"', value, re.S)) if value.lstrip().startswith('"') else value.strip()
                  for name, value in re.findall(r"\.(\w+)\s*=\s*((?:\"[^\"]*\"\s*)+|[^,\"]+)", entry)}
        if not fields.get("flags"):
            continue  # not on the command line
        fields["commands"] = commands(fields["commands"])
        lines.append("\t".join(fields.get(column, "") for column in COLUMNS))
    (Path(__file__).parent / "options.tsv").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
