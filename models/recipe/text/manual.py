"""Questions about Tessera.

options.tsv holds the flags as the program's own option table has them (read_options.py); the rest is written here.
"""

import random
from pathlib import Path

from .chat import Conversation, Turn
from .words import ADJECTIVES, NOUNS, THINGS, new_word

FACTS = [
    (["What is Tessera?", "What does Tessera do?", "Explain what Tessera is."],
     "Tessera serves large mixture-of-experts language models from GGUF files on CPUs, GPUs and other machines."),
    (["Which model files does Tessera read?", "What file format does Tessera load?", "Which format must a model have?"],
     "Tessera reads GGUF files."),
    (["Which model families does Tessera support?", "Which architectures can Tessera run?",
      "What model families are supported?"],
     "Tessera supports qwen35moe, qwen35, qwen3, laguna and gemma4."),
    (["How do I start a server?", "How do I serve a model?", "How can I start the HTTP server?",
      "Which command starts the server?"], "Use tessera serve, for example: tessera serve model.gguf --port 8080"),
    (["How do I ask a single question?", "How do I run one prompt?", "How can I chat on the terminal?",
      "Which command answers one prompt?"],
     "Use tessera run, for example: tessera run model.gguf -p 'Why is the sky blue?'"),
    (["How do I see the plan?", "How do I see where everything would lie?", "How much memory does a model take?",
      "Which command shows the placement?"], "Use tessera plan, for example: tessera plan model.gguf --ctx 8192"),
    (["How do I measure speed?", "How do I benchmark a model?", "Which command measures speed?"],
     "Use tessera bench, for example: tessera bench model.gguf -p 512,4096 -n 128"),
    (["How do I look into a GGUF file?", "How do I see a file's metadata?", "Which command shows the tensors?"],
     "Use tessera inspect, for example: tessera inspect model.gguf"),
    (["How do I turn text into token ids?", "How do I tokenize text?", "Which command tokenizes text?"],
     "Use tessera tokenize, for example: tessera tokenize model.gguf --text Hi"),
    (["How do I turn token ids into text?", "How do I detokenize ids?", "Which command detokenizes?"],
     "Use tessera detokenize, for example: tessera detokenize model.gguf --ids 1,2,3"),
    (["How do I render a conversation?", "How do I test the chat template?", "Which command renders the chat template?"],
     "Use tessera template, for example: tessera template model.gguf --messages chat.json"),
    (["How do I get logits?", "How do I write logits to a file?", "Which command writes logits?"],
     "Use tessera logits, for example: tessera logits model.gguf --ids 1,2,3 --out logits.f32"),
    (["How do I make a random model?", "How do I write a model with random weights?",
      "Which command makes a synthetic model?"],
     "Use tessera synth, for example: tessera synth qwen35moe mini.gguf --preset mini"),
    (["Which endpoints are there?", "What are the endpoints?", "List the endpoints.", "Which paths does the server have?",
      "What can I call over HTTP?"],
     "Among others: POST /v1/chat/completions, POST /v1/completions, GET /v1/models, GET /health, GET /ready, GET /props, GET /metrics."),
    (["How do I stop the server?", "What happens on SIGTERM?"],
     "Send SIGTERM: the server takes no new requests and lets running answers end for the time of --drain."),
    (["How do I protect the server with a key?", "How do I require an API key?"],
     "Start it with --api-key KEY or --api-key-file PATH."),
    (["How do I listen on all addresses?", "How do I open the server to the network?"],
     "Use --host 0.0.0.0 together with --api-key; without a key it also needs --insecure."),
    (["How do I get the same answer each time?", "How do I make answers repeatable?"],
     "Use --temperature 0, or set --seed to a fixed number."),
    (["Which devices can Tessera use?", "How do I list my devices?", "Why is my GPU not used?",
      "Which command lists the devices?", "How do I see my GPUs?"],
     "Use tessera devices: it lists what can compute here, and why something cannot."),
    (["How do I split a model over two devices?", "How do I use several devices?", "How can two GPUs share a model?"],
     "Name them in order, for example: tessera serve model.gguf --target-devices cuda:0,cuda:1"),
    (["How do I use a GPU?", "How do I run on the GPU?", "How do I put a model on a GPU?"],
     "Use --target-devices cuda:0. tessera devices says whether it can be used."),
    (["How do I split a model over two processes?", "How do I start a worker with the server?", "How do I spawn a worker?"],
     "Use --spawn-worker layers or --spawn-worker experts; layers of the first are named worker:0 in --target-devices."),
    (["How do I use another machine?", "How do I start a worker on another machine?", "How do I listen for a server?"],
     "Start tessera worker --listen tcp:0.0.0.0:9000 --token-file FILE there, and name worker:tcp:HOST:9000 in --target-devices."),
    (["What happens when a worker dies?", "Can a worker fail?", "What if an expert worker is killed?"],
     "Its experts are computed by the host, with the same answers; its layers come back when it does."),
    (["How do I make a routing profile?", "How do I find out which experts are used?", "Which command counts experts?"],
     "Use tessera calibrate, for example: tessera calibrate model.gguf --text sample.txt"),
    (["What is an expert?", "What are experts?", "What is a mixture of experts?"],
     "A mixture-of-experts layer has many small networks, the experts; a router chooses a few of them for each token."),
    (["What if a model is larger than my memory?", "Can I run a model that does not fit?", "My model does not fit. What can I do?"],
     "Experts that do not fit stay in the mapped file or go to workers; tessera plan shows it before anything loads."),
    (["What is greedy decoding?", "How do I decode greedily?"],
     "Greedy decoding picks the likeliest token each time; use --temperature 0."),
]

PLAN = {
    "device": "the device that holds the shard",
    "threads": "how many threads compute on the device",
    "layers": "the range of layers that lie on the device, and whether the embedding and the head do",
    "experts": "how many experts are resident on the device, and how many the host and the workers compute",
    "weights": "the bytes of the weights on the device",
    "KV": "the bytes of the cache of keys and values",
    "recurrent": "the bytes of the state of the gated-delta layers",
    "scratch": "the bytes of working memory for one step",
    "total": "the sum of weights, KV, recurrent state and scratch",
    "free": "what the device's budget leaves after the total",
}
PLAN_QUESTIONS = ["What does the {} column of a plan mean?", "In a plan, what is {}?", "How do I read {} in a plan?",
                  "What is the column {} in tessera plan?", "Explain the {} column of the plan.",
                  "What does {} in the plan table stand for?"]

ENDPOINTS = {
    "/health": ("GET", "says whether the process is alive"),
    "/ready": ("GET", "says whether the server can take requests"),
    "/metrics": ("GET", "gives counters and times in Prometheus text"),
    "/props": ("GET", "gives the properties of the loaded model"),
    "/v1/models": ("GET", "lists the models"),
    "/v1/models/{id}": ("GET", "describes one model"),
    "/v1/chat/completions": ("POST", "answers a conversation"),
    "/v1/completions": ("POST", "continues a text"),
    "/tokenize": ("POST", "turns text into token ids"),
    "/detokenize": ("POST", "turns token ids into text"),
    "/apply-template": ("POST", "renders messages with the chat template"),
}
ENDPOINT_QUESTIONS = ["What does {} do?", "What is {} for?", "What is the endpoint {}?", "Explain {}.",
                      "What do I get from {}?", "Tell me about {}."]
METHOD_QUESTIONS = ["Which method does {} take?", "Is {} GET or POST?", "How do I call {}?",
                    "Which HTTP method is {}?", "GET or POST for {}?"]
FIND_ENDPOINT = ["Which endpoint {}?", "What is the path that {}?", "Which URL {}?", "Name the endpoint that {}."]

FLAG_QUESTIONS = ["What does {} do?", "What is {} for?", "Explain {}.", "What does the flag {} mean?",
                  "Tell me about {}.", "What is the option {}?", "How do I use {}?", "Describe {}."]
DEFAULT_QUESTIONS = ["What is the default of {}?", "What is {} by default?", "Which value has {} if I leave it out?",
                     "Default of {}?", "What is the default value of {}?"]
COMMAND_QUESTIONS = ["Which commands take {}?", "Where can I use {}?", "What commands know {}?",
                     "Which commands accept {}?"]
CHOICE_QUESTIONS = ["Which values can {} have?", "What are the choices of {}?", "What can I give to {}?",
                    "Which values does {} accept?"]
KEY_QUESTIONS = ["What is the configuration key of {}?", "How is {} called in the config file?",
                 "Which TOML key belongs to {}?"]
ABOUT_FLAG = FLAG_QUESTIONS * 2 + DEFAULT_QUESTIONS + COMMAND_QUESTIONS + CHOICE_QUESTIONS + KEY_QUESTIONS
FIND_FLAG = ["Which flag is this: {}?", "Which option stands for: {}?", "I look for the flag with this meaning: {}",
             "Name the flag: {}"]


UNKNOWN_FLAGS = """gpu-layers n-gpu-layers flash-attn batch-size ubatch-size main-gpu tensor-split mlock no-mmap numa model
models-dir hf-repo lora grammar json-schema beam-size beams max-tokens num-gpus device verbose quiet help-all color stream
draft-max draft-min cache-type-k rope-scale rope-freq-base yarn mirostat typical-p repeat-last-n keep slots embedding rerank
jinja reasoning-format think no-think quantize download update daemon detach workers-max nodes cluster backend precision dtype
swap-space block-size trust-remote-code revision tokenizer served-model-name root-path ssl-key ssl-cert timeout retries cache-dir
log-file log-dir metrics-port tls proxy user group pid-file save load resume top-a top-n""".split()
UNKNOWN_ENDPOINTS = ["/v2/{}", "/v1/{}", "/{}", "/v1/chat/{}", "/api/{}", "/{}/list", "/v1/{}/new"]
COMMANDS = {
    "serve": "answers an OpenAI-style HTTP API",
    "run": "answers one prompt, or chats on the terminal",
    "plan": "shows where everything would lie and what it takes",
    "devices": "lists what can compute here, and why something cannot",
    "bench": "measures prompt and generation speed",
    "calibrate": "counts which experts a text needs",
    "inspect": "shows a GGUF file's metadata and tensors",
    "tokenize": "turns text into token ids",
    "detokenize": "turns token ids into text",
    "template": "renders a conversation with the chat template",
    "logits": "writes the logits of a token sequence",
    "synth": "writes a model file with random weights",
    "worker": "computes layers or experts for a server in another process",
}
COMMAND_OPTIONS = ["Which options does {} take?", "How do I get help for {}?", "Where are the options of {}?"]


def load_options() -> list:
    lines = (Path(__file__).parent / "options.tsv").read_text().splitlines()
    return [dict(zip(lines[0].split("\t"), line.split("\t"))) for line in lines[1:]]


OPTIONS = load_options()


def option_questions(rng: random.Random) -> tuple:
    option = rng.choice(OPTIONS)
    name = option["flags"].split(",")[-1 if rng.random() < 0.8 else 0]
    repeated = sum(name in other["flags"].split(",") for other in OPTIONS) > 1
    kind = rng.random()
    if repeated or kind < 0.45:
        meanings = [o for o in OPTIONS if name in o["flags"].split(",")]
        answer = " ".join(f"{name}{' ' + o['value'] if o['value'] else ''}: {o['help']}." +
                          (f" Default: {o['default']}." if o["default"] else "") +
                          (f" Commands: {o['commands'].replace(' ', ', ')}." if repeated else "") for o in meanings)
        return rng.choice(FLAG_QUESTIONS).format(name), answer
    if kind < 0.6:
        default = f"The default of {name} is {option['default']}." if option["default"] else f"{name} has no default."
        return rng.choice(DEFAULT_QUESTIONS).format(name), default
    if kind < 0.7:
        return (rng.choice(COMMAND_QUESTIONS).format(name), f"{name} works with {option['commands'].replace(' ', ', ')}.")
    if kind < 0.78 and option["choices"]:
        return rng.choice(CHOICE_QUESTIONS).format(name), f"{name} can be {option['choices'].replace('|', ', ')}."
    if kind < 0.86:
        return rng.choice(KEY_QUESTIONS).format(name), f"The key of {name} is {option['key']}."
    return rng.choice(FIND_FLAG).format(option["help"]), f"It is {option['flags'].split(',')[-1]}."


KNOWN = {name for option in OPTIONS for name in option["flags"].split(",")}


def some_word(rng: random.Random) -> str:
    return rng.choice(rng.choice((NOUNS, THINGS, ADJECTIVES))) if rng.random() < 0.75 else new_word(rng)


def unknown_flag(rng: random.Random) -> str:
    """Flags of other programs, random words, and known flags spelled otherwise."""
    while True:
        kind = rng.random()
        if kind < 0.3:
            name = "--" + rng.choice(UNKNOWN_FLAGS)
        elif kind < 0.7:
            name = "--" + "-".join(some_word(rng) for _ in range(rng.randint(1, 3)))
        else:
            known = rng.choice(OPTIONS)["flags"].split(",")[-1]
            parts = known.removeprefix("--").split("-")
            change = rng.random()
            if change < 0.35:
                parts[rng.randint(0, len(parts) - 1)] = some_word(rng)
            elif change < 0.7:
                parts.insert(rng.randint(0, len(parts)), rng.choice(("max", "min", "no", "n", "all", some_word(rng))))
            else:
                parts[-1] += rng.choice(("s", "x", "2", "er"))
            name = "--" + "-".join(parts)
        if name not in KNOWN:
            return name


def unknown_questions(rng: random.Random) -> tuple:
    kind = rng.random()
    if kind < 0.75:
        name = unknown_flag(rng)
        asked = rng.choice(ABOUT_FLAG).format(name)
        return asked, f"I know no flag {name}. See tessera --help."
    word = some_word(rng)
    if kind < 0.9:
        path = rng.choice(UNKNOWN_ENDPOINTS).format(word)
        return rng.choice(ENDPOINT_QUESTIONS + METHOD_QUESTIONS).format(path), f"I know no endpoint {path}."
    if word in COMMANDS:
        return unknown_questions(rng)
    asked = rng.choice(ENDPOINT_QUESTIONS).format(f"tessera {word}")
    return asked, f"I know no command tessera {word}. See tessera --help."


def endpoint_questions(rng: random.Random) -> tuple:
    path = rng.choice(list(ENDPOINTS))
    method, meaning = ENDPOINTS[path]
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(ENDPOINT_QUESTIONS).format(path), f"{method} {path} {meaning}."
    if kind < 0.75:
        return rng.choice(METHOD_QUESTIONS).format(path), f"{path} takes {method}."
    return rng.choice(FIND_ENDPOINT).format(meaning), f"It is {method} {path}."


def command_questions(rng: random.Random) -> tuple:
    command = rng.choice(list(COMMANDS))
    if rng.random() < 0.2:
        return rng.choice(COMMAND_OPTIONS).format(f"tessera {command}"), f"See tessera {command} --help."
    return rng.choice(ENDPOINT_QUESTIONS).format(f"tessera {command}"), f"tessera {command} {COMMANDS[command]}."


def plan_questions(rng: random.Random) -> tuple:
    column = rng.choice(list(PLAN))
    return rng.choice(PLAN_QUESTIONS).format(column), f"In a plan, {column} is {PLAN[column]}."


HOW = ["How do I", "How can I", "How would I", "I want to", "I would like to", "Tell me how to", "Show me how to", "What do I do to",
       "How does one", "How to"]


def reworded(rng: random.Random, text: str) -> str:
    """"How do I ...?" in other ways."""
    for start in ("How do I ", "How can I "):
        if text.startswith(start) and rng.random() < 0.6:
            how = rng.choice(HOW)
            return f"{how} {text.removeprefix(start)[:-1]}{'.' if how[0] in 'IST' else '?'}"
    return text


def listed(entries: list, rng: random.Random) -> tuple:
    questions, answer = rng.choice(entries)
    return reworded(rng, rng.choice(questions)), answer


OPENERS = ["", "", "", "", "", "Please tell me: ", "Hello! ", "Hi, ", "A question: ", "Quick question: ",
           "Hey, ", "I want to know: ", "Help me: ", "One more thing: ", "Excuse me. ", "OK. ", "Now: ", "Another question: ",
           "Sorry, ", "Good day. "]
CLOSERS = ["", "", "", "", "", " Thanks.", " Please.", " Thank you!", " Be brief.", " I am new here."]


def casual(rng: random.Random, text: str) -> str:
    """As people type: sometimes no capital at the start, no mark at the end."""
    if rng.random() < 0.25:
        text = text[0].lower() + text[1:]
    if text[-1] in "?." and rng.random() < 0.2:
        text = text[:-1]
    return text


def phrased(rng: random.Random, asked: str) -> str:
    opener, closer = rng.choice(OPENERS), rng.choice(CLOSERS)
    asked = casual(rng, asked)
    return opener + asked + (closer if asked[-1] in "?.!" else "")


def question(rng: random.Random) -> tuple:
    kind = rng.random()
    if kind < 0.48:
        asked, answer = option_questions(rng)
    elif kind < 0.57:
        asked, answer = endpoint_questions(rng)
    elif kind < 0.63:
        asked, answer = command_questions(rng)
    elif kind < 0.71:
        asked, answer = plan_questions(rng)
    elif kind < 0.83:
        asked, answer = unknown_questions(rng)
    else:
        asked, answer = listed(FACTS, rng)
    return phrased(rng, asked), answer


def manual(rng: random.Random) -> Conversation:
    turns = []
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        asked, answer = rng.user(lambda: question(rng))
        turns += [Turn("user", asked), Turn("assistant", answer, "A question about Tessera.")]
    return Conversation("manual", turns, thinking=rng.random() < 0.5)
