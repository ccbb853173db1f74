"""Holds render() and chat_template.jinja together: python3 check_template.py [TESSERA MODEL.gguf]

With the program's path and a model it also compares `tessera template` on a few conversations.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import jinja2

from text.chat import Conversation, each_answer, messages_of, render, up_to
from text.corpus import LONG, TESTS, test_set

TEMPLATE = Path(__file__).parent.parent / "chat_template.jinja"


def fail(text: str) -> None:
    raise ValueError(text)


def environment() -> jinja2.Environment:
    env = jinja2.Environment()
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = fail
    return env


def request_of(conversation: Conversation, end: int) -> dict:
    """What a client sends to get the turn at `end`."""
    return {"messages": messages_of(up_to(conversation, end)), "tools": conversation.tools or None, "add_generation_prompt": True,
            "enable_thinking": conversation.thinking}


def shown_by(program: list, request: dict) -> str:
    body = {key: value for key, value in request.items() if value is not None}
    command = [program[0], "template", program[1], "--messages", "/dev/stdin", "--log-level", "error"]
    return subprocess.run(command, input=json.dumps(body), capture_output=True, text=True, check=True).stdout


def main() -> None:
    template = environment().from_string(TEMPLATE.read_text())
    program, checked = sys.argv[1:3], 0
    for name in TESTS:
        for i, conversation in enumerate(test_set(name, 20 if name not in LONG else 2)):
            if i % 4 == 0:
                conversation.system = random.Random(i).choice(["", "Be brief.", "You are a careful helper."])
            ends = [n for n, turn in enumerate(conversation.turns) if turn.role == "assistant"]
            for end, (prompt, _) in zip(ends, each_answer(conversation)):
                request = request_of(conversation, end)
                assert template.render(**request) == prompt, name
                if program and i < 4 and name not in LONG:
                    shown = shown_by(program, request)
                    assert shown.removesuffix("\n") == prompt.removesuffix("\n"), (name, shown, prompt)
            whole = template.render(messages=messages_of(conversation), tools=conversation.tools or None)
            assert whole == "".join(text for text, _ in render(conversation)), name
            checked += 1
    print(f"{checked} conversations agree")


if __name__ == "__main__":
    main()
