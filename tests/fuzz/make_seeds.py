#!/usr/bin/env python3
"""Writes the first inputs of the fuzzers from the test data beside them.

Run it after the data or an input format changed; it adds files and removes none.
scripts/fuzz adds what the fuzzers themselves find.
"""
import hashlib
import json
import pathlib
import struct

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "data"


def seed(fuzzer, content):
    if isinstance(content, str):
        content = content.encode()
    folder = HERE / fuzzer
    folder.mkdir(exist_ok=True)
    (folder / hashlib.sha1(content).hexdigest()[:16]).write_bytes(content)


class Reader:
    SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, data):
        self.data, self.at = data, 24

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def skip_value(self, kind):
        if kind == 8:
            size = self.number("Q")
            self.at += size
        elif kind == 9:
            kind, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(kind)
        else:
            self.at += self.SIZES[kind]


def header_of(path):
    """A GGUF file up to the end of its tensor list."""
    reader = Reader(path.read_bytes())
    tensors, keys = struct.unpack_from("<QQ", reader.data, 8)
    for _ in range(keys):
        reader.skip_value(8)
        reader.skip_value(reader.number("I"))
    for _ in range(tensors):
        reader.skip_value(8)
        dimensions = reader.number("I")
        reader.at += 8 * dimensions + 4 + 8
    return reader.data[: reader.at]


def model_seeds():
    for path in sorted((DATA / "golden").glob("*.gguf")):
        seed("model", header_of(path))


def jinja_seeds():
    micro = json.loads((DATA / "templates" / "micro.json").read_text())
    for i, case in enumerate(micro["cases"]):
        value = list(micro["variables"].values())[i % len(micro["variables"])]
        seed("jinja", json.dumps(value) + "\n" + case["template"])
    for path in sorted((DATA / "templates").glob("*.jinja")):
        seed("jinja", "true\n" + path.read_text())


def request_seeds():
    for path in sorted((DATA / "templates").glob("Qwen3.5*.json")):
        for case in json.loads(path.read_text())["cases"]:
            variables = case["variables"]
            body = {"model": "fuzz", "messages": variables["messages"]}
            if variables.get("tools"):
                body["tools"] = variables["tools"]
            seed("request", json.dumps(body))
    user = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    for extra in CHAT_FIELDS:
        seed("request", json.dumps({"model": "fuzz", "messages": user, **extra}))
    for extra in COMPLETION_FIELDS:
        seed("request", json.dumps({"model": "fuzz", **extra}))
    body = json.dumps({"prompt": "a"})
    head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    seed("request", f"{head}Content-Length: {len(body)}\r\n\r\n{body}")
    seed("request", f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n{body}")
    seed("request", f"{head}Transfer-Encoding: chunked\r\n\r\n{len(body):x}\r\n{body}\r\n0\r\n\r\n")
    seed("request", "GET /v1/models?a=%20b HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer k\r\n\r\n")
    seed("request", "OPTIONS * HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")


CHAT_FIELDS = [
    {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "top_k": 40, "seed": -1},
    {"frequency_penalty": 1, "presence_penalty": -1, "repeat_penalty": 1.1, "repeat_last_n": 64},
    {"logprobs": True, "top_logprobs": 3, "max_completion_tokens": 5, "n": 2},
    {"stream": True, "stream_options": {"include_usage": True}, "stop": ["a", "bc"]},
    {"logit_bias": {"1": -100, "2": 3.5}, "ignore_eos": True, "max_tokens": 4},
    {"reasoning_effort": "low", "chat_template_kwargs": {"k": [1, None]}},
    {"thinking": {"type": "disabled"}, "tool_choice": "auto", "parallel_tool_calls": True},
    {"response_format": {"type": "text"}, "modalities": ["text"], "user": "u"},
]
COMPLETION_FIELDS = [
    {"prompt": "a b", "max_tokens": 3, "echo": True, "logprobs": 2},
    {"prompt": ["a", "b"], "n": 2, "stop": "x"},
    {"prompt": [1, 2, 3], "best_of": 1},
    {"prompt": [[1], [2, 3]], "stream": True},
]


def tokenizer_seeds():
    for path in sorted((DATA / "vocab").glob("*.inp")):
        for text in path.read_text().split("\n__ggml_vocab_test__\n"):
            seed("tokenizer", text)
    seed("tokenizer", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>")
    seed("tokenizer", b"\xf0\x9f\x8c\x80\xc3\x28\xe2\x96\x81\xff\x00A")


if __name__ == "__main__":
    model_seeds()
    jinja_seeds()
    request_seeds()
    tokenizer_seeds()
