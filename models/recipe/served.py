"""Scores the held-out sets as they are served: by `tessera serve` over HTTP, greedily, with its own arithmetic.

    python3 served.py ../tessera-mini.gguf --tessera ../../build/release/tessera [--compute auto] [--count N] [--out FILE.json]

A conversation counts when each assistant turn is the reference: thought, content and calls. The next turn is asked for
with the reference's history, as evaluate.py does, which is the same for a conversation that counts. The hand-written tests
of text/judged.py are judged by the call, or by the end of the answer.
"""

import argparse
import json
import socket
import subprocess
import time
import urllib.error
import urllib.request

from digests import digests
from text.chat import Conversation, Turn, each_answer, messages_of, reply_text, up_to
from text.corpus import LONG, TESTS, test_set
from text.judged import JUDGED, is_right, judged
from text.tools import by_kind

SHARE_OF_LONG = {"absent": 5, "recall_1k": 5, "recall_4k": 10, "recall_8k": 20, "recall_16k": 40,
                 "recall_prose_2k": 10, "recall_prose_6k": 20}  # one of so many
START_SECONDS = 60


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until_ready(server: subprocess.Popen, port: int) -> None:
    end = time.time() + START_SECONDS
    while time.time() < end and server.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=5).read()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise SystemExit("the server did not get ready; run it by hand with the same model to see why")


def said(message: dict) -> str:
    """What the model wrote, whether or not the server took thought and calls out of its text."""
    calls = [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []]
    text = reply_text(Turn("assistant", (message.get("content") or "").strip(), calls=calls))
    thought = message.get("reasoning_content")
    return f"{thought.strip()}\n</think>\n\n{text}" if thought else text


def answer_from(port: int, conversation: Conversation) -> str:
    """The assistant's next turn, as the server's client gets it."""
    history = messages_of(conversation)
    waiting: list = []  # calls without a result
    for n, message in enumerate(history):
        for i, call in enumerate(message.get("tool_calls", [])):
            call["id"] = f"call_{n}_{i}"
            call["function"] = {"name": call["function"]["name"], "arguments": json.dumps(call["function"]["arguments"])}
            waiting.append(call["id"])
        if message["role"] == "tool":
            message["tool_call_id"] = waiting.pop(0)
    body = {"messages": history, "temperature": 0, "max_tokens": 1000, "chat_template_kwargs": {"enable_thinking": conversation.thinking}}
    if conversation.tools:
        body["tools"] = conversation.tools
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as reply:
        return said(json.load(reply)["choices"][0]["message"])


def right(port: int, conversation: Conversation) -> bool:
    ends = [end for end, turn in enumerate(conversation.turns) if turn.role == "assistant"]
    return all(answer_from(port, up_to(conversation, end)) == answer.strip()
               for end, (_, answer) in zip(ends, each_answer(conversation)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tessera", required=True)
    parser.add_argument("--compute", default="auto", choices=["auto", "f32"])
    parser.add_argument("--count", type=int, default=40, help="conversations of a short task; fewer of the long ones")
    parser.add_argument("--part", default="test", choices=["dev", "test"])
    parser.add_argument("--out", help="such as ../measured/served.json")
    options = parser.parse_args()
    port, scores, kinds = free_port(), {}, {}
    command = [options.tessera, "serve", options.file, "--port", str(port), "--compute", options.compute, "--log-level", "error"]
    server = subprocess.Popen(command)
    try:
        wait_until_ready(server, port)
        for name in TESTS:
            count = max(1, options.count // SHARE_OF_LONG[name]) if name in LONG else options.count
            conversations = test_set(name, count, options.part)
            found = [right(port, conversation) for conversation in conversations]
            scores[name] = [sum(found), len(found)]
            if name == "tools":
                kinds = by_kind(found, conversations)
            print(name, scores[name], flush=True)
        for name in JUDGED if options.part == "test" else ():
            found = [is_right(name, answer_from(port, conversation), wanted) for conversation, wanted in judged(name)]
            scores[name] = [sum(found), len(found)]
            print(name, scores[name], flush=True)
    finally:
        server.terminate()
        server.wait()
    if options.out:
        with open(options.out, "w", encoding="utf-8") as out:
            report = {"sha256": digests(options.file), "compute": options.compute, "part": options.part, "scores": scores, "tools": kinds}
            out.write(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
