"""Conversations and how they are written as text.

A conversation becomes pieces of (text, learned). `render` writes what chat_template.jinja writes, and the model
learns what it is prompted for: the assistant's turns after the last user turn. check_template.py holds them together.
"""

import json
from dataclasses import dataclass, field, replace

TOOLS_HEAD = "You can call these functions:\n\n<tools>"
TOOLS_TAIL = """
</tools>

To call one, answer with this:

<tool_call>
<function=name_of_the_function>
<parameter=name_of_a_parameter>
its value
</parameter>
</function>
</tool_call>

Give every required parameter. If no function fits, answer without one."""


@dataclass
class Turn:
    role: str  # user, assistant or tool
    content: str = ""
    thought: str = ""
    calls: list = field(default_factory=list)  # (function name, {parameter: value})


@dataclass
class Conversation:
    task: str
    turns: list
    system: str = ""
    tools: list = field(default_factory=list)
    thinking: bool = True
    kind: str = ""  # of a task whose parts are scored apart
    dense: bool = False  # every assistant turn is prompted and learned as if it were the last; not the template's history


def call_text(name: str, arguments: dict) -> str:
    text = f"<tool_call>\n<function={name}>\n"
    for key, value in arguments.items():
        if not isinstance(value, str):
            value = json.dumps(value, ensure_ascii=False)
        text += f"<parameter={key}>\n{value}\n</parameter>\n"
    return text + "</function>\n</tool_call>"


def reply_text(turn: Turn) -> str:
    text = turn.content
    for i, (name, arguments) in enumerate(turn.calls):
        if i > 0:
            text += "\n"
        elif text:
            text += "\n\n"
        text += call_text(name, arguments)
    return text


def system_text(conversation: Conversation) -> str:
    if not conversation.tools:
        return conversation.system
    text = TOOLS_HEAD
    for tool in conversation.tools:
        text += "\n" + json.dumps(tool, ensure_ascii=False)
    text += TOOLS_TAIL
    return text + ("\n\n" + conversation.system if conversation.system else "")


def render(conversation: Conversation) -> list:
    """Pieces (text, learned) of the whole conversation."""
    pieces = []
    system = system_text(conversation)
    if system:
        pieces.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    turns = conversation.turns
    last_query = max(i for i, turn in enumerate(turns) if turn.role == "user")
    for i, turn in enumerate(turns):
        if turn.role == "user":
            pieces.append((f"<|im_start|>user\n{turn.content}<|im_end|>\n", False))
        elif turn.role == "tool":
            head = "<|im_start|>user" if turns[i - 1].role != "tool" else ""
            more = i + 1 < len(turns) and turns[i + 1].role == "tool"
            pieces.append((f"{head}\n<tool_response>\n{turn.content}\n</tool_response>"
                           + ("" if more else "<|im_end|>\n"), False))
        else:
            prompted = conversation.dense or i > last_query
            pieces.append(("<|im_start|>assistant\n", False))
            if prompted:
                if conversation.thinking:
                    pieces.append(("<think>\n", False))
                    pieces.append((f"{turn.thought}\n</think>\n\n", True))
                else:
                    pieces.append(("<think>\n\n</think>\n\n", False))
            pieces.append((reply_text(turn) + "<|im_end|>", prompted))
            pieces.append(("\n", False))
    return pieces


def prompt_and_answer(conversation: Conversation) -> tuple:
    """The text up to the last assistant turn's generation prompt, and that turn's text."""
    assert conversation.turns[-1].role == "assistant" and not conversation.dense
    pieces = render(conversation)
    start = max(i for i, (text, _) in enumerate(pieces) if text == "<|im_start|>assistant\n")
    prompt = "".join(text for text, _ in pieces[:start + 2])
    answer = "".join(text for text, _ in pieces[start + 2:])
    return prompt, answer.removesuffix("\n").removesuffix("<|im_end|>")


def prompt_of(conversation: Conversation) -> str:
    """Of a conversation that ends with a request: the text before the answer."""
    head = "<|im_start|>assistant\n" + ("<think>\n" if conversation.thinking else "<think>\n\n</think>\n\n")
    return "".join(text for text, _ in render(conversation)) + head


def up_to(conversation: Conversation, end: int) -> Conversation:
    return replace(conversation, turns=conversation.turns[:end])


def each_answer(conversation: Conversation) -> list:
    """Prompt and answer of every assistant turn, as a client meets them one after the other."""
    return [prompt_and_answer(up_to(conversation, i + 1)) for i, turn in enumerate(conversation.turns) if turn.role == "assistant"]


def messages_of(conversation: Conversation) -> list:
    """As a client sends them over HTTP."""
    out = [{"role": "system", "content": conversation.system}] if conversation.system else []
    for turn in conversation.turns:
        message: dict = {"role": turn.role, "content": turn.content}
        if turn.role == "assistant":
            message["reasoning_content"] = turn.thought if conversation.thinking else ""
        if turn.calls:
            message["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": a}} for n, a in turn.calls]
        out.append(message)
    return out
