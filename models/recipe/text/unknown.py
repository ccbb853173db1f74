"""Questions about Tessera that nothing here answers: flags, endpoints and commands that it does not have, and purposes that no
flag has. Their words come from other programs, from lists and from nowhere, so that no answer is invented."""

import random

from .frames import AND, DO, DO_COMMAND, DO_FLAG, ENDPOINT_THING, SUPPORT, THAT, THING, WHAT, WHEN, ask
from .outside import everyday_deed
from .words import ADJECTIVES, NOUNS, THINGS, compound, letters, new_word, pseudo_word

UNKNOWN = "I do not know that. See tessera --help and README.md."
UNKNOWN_FLAGS = """gpu-layers n-gpu-layers flash-attn batch-size ubatch-size main-gpu tensor-split mlock no-mmap numa model
models-dir hf-repo lora grammar json-schema beam-size beams max-tokens num-gpus verbose quiet help-all color stream
draft-max draft-min cache-type-k rope-scale rope-freq-base yarn mirostat typical-p repeat-last-n keep slots embedding rerank
jinja reasoning-format think no-think quantize download update daemon detach workers-max nodes cluster backend precision dtype
swap-space block-size trust-remote-code revision tokenizer served-model-name root-path ssl-key ssl-cert timeout retries cache-dir
log-file log-dir metrics-port tls proxy user group pid-file save load resume top-a top-n""".split()
UNKNOWN_ENDPOINTS = ["/v2/{}", "/v1/{}", "/{}", "/v1/chat/{}", "/api/{}", "/{}/list", "/v1/{}/new"]
PURPOSES = """train a model|fine-tune a model|teach the model something new|load a LoRA adapter|merge two models|
convert a model to GGUF|quantize a model|quantise my model|quantize|quantise|quantize it to 4 bits|make a Q4 file of my model|quantise a GGUF file|
make a smaller quant|requantize a model|
turn F16 into Q4_K_M|shrink a model file|compress a model to 4 bits|make my own quants|download a model|prune a model|distill a model|use beam search|
set the beam width|use tensor parallelism|use flash attention|scale the rope frequencies|run Tessera in Docker|
run it as a service|rank documents|limit requests per user|write the log to a file|rotate the log|save a conversation|
export a model to ONNX|use a TPU|use Vulkan|use Metal|sort the queue by priority|bill users|count users|
search the web with Tessera|send mail from Tessera|store documents|index my files|make a user account|update Tessera|
uninstall Tessera|translate the messages of Tessera|change the colors of the terminal|open the web interface|
use a proxy|overclock the GPU|mine coins with Tessera|watch a folder|schedule requests at night|
encrypt the model file|sign the model file|compress the log|reorder the attention heads|drop layers|
average two checkpoints|resume a download|evaluate a model on a test set|compute the perplexity|record a trace|
generate pictures|clone a voice|draw the graph of a model|print the weights of a neuron|freeze a layer|
edit the vocabulary|add a token to the vocabulary|load two models into one server|switch models without a restart|
unload the model|warm up the prompt cache""".replace("\n", "").split("|")
FEATURES = """LoRA|LoRA adapters|beam search|flash attention|tensor parallelism|Docker|Kubernetes|TPUs|Vulkan|Metal|
fine-tuning|training|YaRN|mirostat|gRPC|websockets|plugins|user accounts|rate limits|web search|retrieval|
a web interface|themes|a dark mode|updates|model merging|pruning|distillation|sparse attention|
ring attention|classifier-free guidance|contrastive search|a scheduler|checkpoints|perplexity|
quantization-aware training|federated learning|blockchain|payments|single sign-on|LDAP|Ollama|PyTorch|TensorFlow|JAX|
NPUs|FPGAs|a REPL in Lua|Python bindings|Java bindings|a phone app|a tray icon|mouse input|printing|fax""".replace("\n", "").split("|")
PARAMETERS = """size limit count width depth mode rate threshold timeout level type format interval ratio factor order window policy weight range
budget step buffer penalty strategy delay priority quota rank scale shape""".split()
KINDS = """mode search sampling decoding pruning caching batching scheduling compression merging attention routing sharding logging tracing sync
replay export import""".split()
EVENTS = ["{thing} is too small", "{thing} is too large", "the server's {word} is full", "the {word} of the server overflows",
          "Tessera runs out of {word}s", "Tessera meets a {word}", "a {word} of the server fails", "the {word} of a worker is lost",
          "two workers share a {word}", "the model has no {word}"]
CLAIMS = ["Tessera has a {word}", "Tessera uses {feature}", "the server keeps a {word}", "a worker needs a {word}", "Tessera was made in {name}",
          "tessera serve writes a {word}", "the plan counts the {word}s", "{name} wrote Tessera", "Tessera is faster than {name}",
          "Tessera comes with a {word}", "Tessera belongs to {name}"]
TERMS = ["the {word} of Tessera", "Tessera's {word}", "the {word} {kind} of the server", "the {word} of a worker", "the server's {word}",
         "a {word} in Tessera", "the {word} page of Tessera", "the {word} file of Tessera", "the Tessera {word}", "{thing} of tessera serve"]
TURNS = """set change limit raise lower adjust configure choose increase reduce double halve reset fix define tune select override""".split()
SWITCHES = ["enable", "disable", "turn on", "turn off", "use", "activate", "switch on", "try", "allow", "skip", "avoid"]


THEIRS = ("key", "window", "shell", "table", "box", "engine", "field")  # words of the manual too
FOREIGN = [word for word in NOUNS + THINGS if word not in THEIRS]


def foreign(rng: random.Random) -> str:
    """A word that no flag, option or subject of Tessera is called by."""
    kind = rng.random()
    return rng.choice(FOREIGN) if kind < 0.45 else pseudo_word(rng) if kind < 0.65 else letters(rng) if kind < 0.8 else compound(rng)


def unknown_thing(rng: random.Random) -> str:
    many = "number of {}s" if rng.random() < 0.2 else "{} " + rng.choice(PARAMETERS)
    return "the " + many.format(foreign(rng))


def unknown_purpose(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(PURPOSES)
    return f"{rng.choice(TURNS)} {unknown_thing(rng)}" if kind < 0.75 else f"{rng.choice(SWITCHES)} {unknown_feature(rng)}"


def unknown_feature(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.4:
        return rng.choice(FEATURES)
    if kind < 0.8:
        return f"{foreign(rng)} {rng.choice(KINDS)}"
    word = foreign(rng)
    return word.capitalize() if rng.random() < 0.5 else word + "s"


def made(rng: random.Random, template: str) -> str:
    return template.format(word=foreign(rng), thing=unknown_thing(rng), feature=unknown_feature(rng), name=foreign(rng).capitalize(),
                           kind=rng.choice(KINDS))


def unknown_request(rng: random.Random) -> tuple:
    """A question and UNKNOWN."""
    kind = rng.random()
    if kind < 0.25:
        return ask(rng, THING, unknown_thing(rng)), UNKNOWN
    if kind < 0.4:
        frames, templates = rng.choice(((WHEN, EVENTS), (THAT, CLAIMS), (WHAT, TERMS)))
        return ask(rng, frames, made(rng, rng.choice(templates))), UNKNOWN
    if kind < 0.48:
        return ask(rng, ENDPOINT_THING, unknown_thing(rng)), UNKNOWN
    if kind < 0.7:
        # What is outside (outside.py) is asked of Tessera here, by naming a flag, a command or it.
        deed = everyday_deed(rng) if rng.random() < 0.25 else unknown_purpose(rng)
        return ask(rng, rng.choice((DO_FLAG, DO_FLAG, DO_COMMAND)), deed), UNKNOWN
    if kind < 0.8:
        return ask(rng, DO, rng.choice(PURPOSES) if rng.random() < 0.5 else f"{rng.choice(TURNS)} {unknown_thing(rng)}"), UNKNOWN
    return ask(rng, SUPPORT, unknown_feature(rng)), UNKNOWN


def some_word(rng: random.Random) -> str:
    return rng.choice(rng.choice((NOUNS, THINGS, ADJECTIVES))) if rng.random() < 0.75 else new_word(rng)


def unknown_flag(rng: random.Random, known: list) -> str:
    """Flags of other programs, random words, and known flags spelled otherwise."""
    while True:
        kind = rng.random()
        if kind < 0.3:
            name = "--" + rng.choice(UNKNOWN_FLAGS)
        elif kind < 0.7:
            name = "--" + "-".join(some_word(rng) for _ in range(rng.randint(1, 3)))
        else:
            parts = rng.choice(known).removeprefix("--").split("-")
            change = rng.random()
            if change < 0.35:
                parts[rng.randint(0, len(parts) - 1)] = some_word(rng)
            elif change < 0.7:
                parts.insert(rng.randint(0, len(parts)), rng.choice(("max", "min", "no", "n", "all", some_word(rng))))
            else:
                parts[-1] += rng.choice(("s", "x", "2", "er"))
            name = "--" + "-".join(parts)
        if name not in known:
            return name


def unknown_path(rng: random.Random, known: list) -> str:
    while True:
        path = rng.choice(UNKNOWN_ENDPOINTS).format(some_word(rng))
        if path not in known:
            return path


def unknown_command(rng: random.Random, known: list) -> str:
    while True:
        word = some_word(rng)
        if word not in known:
            return f"tessera {word}"


def and_unknown(rng: random.Random) -> tuple:
    return ask(rng, AND, unknown_thing(rng)), UNKNOWN
