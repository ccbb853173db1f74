"""Holds render() and chat_template.jinja together: python3 check_template.py [TESSERA MODEL.gguf]

With the program's path and a model it also compares `tessera template` on a few conversations.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import jinja2

from text.chat import Conversation, prompt_and_answer, render
from text.corpus import TESTS, test_set

TEMPLATE = Path(__file__).parent.parent / "chat_template.jinja"


def messages_of(conversation: Conversation, turns: list) -> list:
    out = [{"role": "system", "content": conversation.system}] if conversation.system else []
    for turn in turns:
        message = {"role": turn.role, "content": turn.content}
        if turn.role == "assistant":
            message["reasoning_content"] = turn.thought if conversation.thinking else ""
        if turn.calls:
            message["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in turn.calls]
        out.append(message)
    return out


def fail(text: str) -> None:
    raise ValueError(text)


def environment() -> jinja2.Environment:
    env = jinja2.Environment()
    env.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    env.globals["raise_exception"] = fail
    return env


def main() -> None:
    template = environment().from_string(TEMPLATE.read_text())
    checked = 0
    for name in TESTS:
        for i, conversation in enumerate(test_set(name, 20 if not name.startswith("recall") else 2)):
            if i % 4 == 0:
                conversation.system = random.Random(i).choice(["", "Be brief.", "You are a careful helper."])
            prompt, _ = prompt_and_answer(conversation)
            request = {"messages": messages_of(conversation, conversation.turns[:-1]), "tools": conversation.tools or None,
                       "add_generation_prompt": True, "enable_thinking": conversation.thinking}
            assert template.render(**request) == prompt, name
            # A closed history without thoughts is written in another way by design: an empty thought.
            if conversation.thinking:
                whole = template.render(messages=messages_of(conversation, conversation.turns), tools=conversation.tools or None)
                assert whole == "".join(text for text, _ in render(conversation)), name
            if len(sys.argv) > 2 and i < 4 and not name.startswith("recall_"):
                program = [sys.argv[1], "template", sys.argv[2], "--messages", "/dev/stdin", "--log-level", "error"]
                body = {key: value for key, value in request.items() if value is not None}
                shown = subprocess.run(program, input=json.dumps(body), capture_output=True, text=True, check=True).stdout
                assert shown.removesuffix("\n") == prompt.removesuffix("\n"), (name, shown, prompt)
            checked += 1
    print(f"{checked} conversations agree")


if __name__ == "__main__":
    main()
