"""What stands in the tables of plan and bench, in /health and in the codes that Tessera gives."""

import random

from .frames import and_one, ask
from .unknown import UNKNOWN, foreign

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
                  "What is the column {} in tessera plan?", "Explain the {} column of the plan.", "What does {} in the plan table stand for?",
                  "What does {} mean in the plan?", "What is {} in the output of tessera plan?", "The plan has a column {}. What is it?",
                  "What is under {} in the plan?", "The plan says {}. What is that?", "What do the numbers under {} in a plan mean?",
                  "What am I to make of {} in a plan?", "In the plan's table, {} means what?", "Why does a plan have the column {}?",
                  "I do not understand {} in the plan.", "{} in a plan?", "{} in the plan, please explain.", "The heading {} in the plan?",
                  "I see {} in the plan. What does it mean?", "The column {} of tessera plan, what is it?", "What is meant by {} in a plan?",
                  "What does tessera plan show under {}?", "What does \"{}\" in the plan tell me?", "Plan column {}?"]
# Asked for by what it is and not by its name.
PLAN_ASKED = {
    "device": ["Where in the plan do I see which device a line is about?",
               "Which column of the plan names the GPU?", "What is the first column of a plan?"],
    "threads": ["Where in the plan do I see how many cores are used?", "Which column of the plan says how many cores compute?"],
    "layers": ["Where in the plan do I see which layers are on my GPU?", "Which column of the plan says who holds the head?",
               "In a plan, what does 0-2 +embedding say?", "In a plan, what does 3-7 +head say?", "The plan says 0-39. Of what?"],
    "experts": ["Where in the plan do I see how many experts are on the GPU?", "Which column of the plan says who computes the experts?",
                "In a plan, which number tells how many experts are resident?"],
    "weights": ["Where in the plan do I see how big the model is on a device?", "Which column of the plan counts the model's own bytes?",
                "In a plan, how much of the memory is the model itself?"],
    "KV": ["Where in the plan do I see what the context costs?", "Which column of the plan grows with the context?",
           "In a plan, which memory is for the cache of attention?"],
    "recurrent": ["Which column of the plan is about gated delta?", "Where in the plan is the state of the linear layers?",
                  "In a plan, which memory is for gated-delta layers?"],
    "scratch": ["Which column of the plan is working memory?", "Where in the plan are the buffers of a step?",
                "In a plan, what is the temporary memory called?"],
    "total": ["Where in the plan do I see what a device needs in all?", "Which column of the plan is the sum?",
              "In a plan, how much is it all together?"],
    "free": ["Where in the plan do I see how much is left over?", "Which column of the plan says what remains?",
             "In a plan, how much memory stays unused?", "What is the last column of a plan?"],
}
BENCH = {
    "pp512": "a prompt of 512 tokens", "pp128": "a prompt of 128 tokens", "tg32": "the generation of 32 tokens",
    "tg128": "the generation of 128 tokens",
    "x8": "eight sequences at a time", "depth": "how many tokens were in the context before", "bytes/token": "what one token must read",
    "of reading": "the part of the machine's own measured read speed", "of int8": "the part of the machine's peak in 8-bit multiplications",
    "GB/s": "how many bytes are read in a second",
}
BENCH_QUESTIONS = ["What does {} mean in tessera bench?", "In tessera bench, what is {}?", "What is {} in the output of tessera bench?",
                   "tessera bench says {}. What is that?", "How do I read {} in a benchmark?", "What does {} stand for in bench?",
                   "I ran the benchmark. What is {}?", "{} in bench?", "What does bench mean by {}?", "What am I to make of {} in bench?",
                   "Explain {} of tessera bench.", "What is meant by {} in the benchmark's table?", "The benchmark prints {}. What does it mean?"]
HEALTH = {"ok": "all is well", "degraded": "a worker is away and the host does its work", "recovering": "requests fail until a worker is back",
          "error": "requests fail"}
HEALTH_QUESTIONS = ["What does {} mean in /health?", "/health says {}. What does it mean?", "The health is {}. What is that?",
                    "What is the status {} of /health?", "Why does /health say {}?", "What does the status {} mean?",
                    "My monitoring says the health is {}.", "The status at /health is {}. Should I worry?", "The server's health is {}, why?",
                    "I call /health and get {}.", "What do I do when /health says {}?", "Is the health {} bad?", "When is the health {}?",
                    "My server is {}. What does that mean?", "Explain {} in /health."]
CODES = {
    "exit code 0": "it is done", "exit code 1": "it failed", "exit code 2": "the usage was wrong",
    "exit code 3": "a device failed while the server ran",
    "exit code 130": "it was ended at once by Ctrl-C", "exit code 143": "it was ended at once by SIGTERM",
    "status 400": "the request was wrong, which its message explains", "status 401": "a valid API key is missing",
    "status 404": "there is no such endpoint or model", "status 405": "the endpoint takes another method",
    "status 408": "the request did not arrive in time",
    "status 413": "the request's body is larger than --max-body allows",
    "status 431": "the request's header is larger than --max-header allows", "status 500": "something failed inside the server",
    "status 429": "more requests wait than --max-queue allows",
    "status 501": "Tessera does not support that", "status 503": "the model is not loaded yet, or requests fail for now",
}
CODE_QUESTIONS = ["What does {} mean?", "What is {}?", "I get {}. What does it mean?", "Why do I get {}?", "What does {} tell me?", "Explain {}.",
                  "When does Tessera give {}?", "I got {}, what now?", "What is the meaning of {}?", "When do I see {}?",
                  "Why {}?", "It gives me {}.", "Suddenly I get {}.", "My client reports {}.", "What causes {}?", "What is wrong when I see {}?",
                  "What do I do about {}?", "My script sees {}. Why?"]
CALLED = {"exit": ["exit code {}", "exit code {}", "exit status {}", "return code {}", "the exit code {}", "the return value {}"],
          "status": ["status {}", "status {}", "HTTP {}", "HTTP status {}", "status code {}", "an HTTP {}",
                     "HTTP error {}", "the response code {}"]}


def plan_meaning(rng: random.Random) -> tuple:
    column = rng.choice(list(PLAN))
    return column, f"In a plan, {column} is {PLAN[column]}."


def bench_meaning(rng: random.Random) -> tuple:
    if rng.random() < 0.3:
        kind, text = rng.choice((("pp", "a prompt of {} tokens"), ("tg", "the generation of {} tokens"), ("x", "{} sequences at a time")))
        n = rng.choice((2, 4, 16, 32, 64, 100) if kind == "x" else (16, 64, 100, 200, 256, 500, 1000, 1024, 2048, 4096, 8192, rng.randint(2, 9999)))
        return f"{kind}{n}", f"In tessera bench, {kind}{n} is {text.format(n)}."
    column = rng.choice(list(BENCH))
    return column, f"In tessera bench, {column} is {BENCH[column]}."


def called(rng: random.Random, code: str) -> str:
    """"exit code 1", "status 503" as people call them."""
    return rng.choice(CALLED[code.split()[0]]).format(code.split()[-1])


AND_PLAN, AND_BENCH = and_one(plan_meaning), and_one(bench_meaning)


def table_questions(rng: random.Random) -> tuple:
    """What stands in the output of plan and bench, in /health, in codes."""
    kind = rng.random()
    if kind < 0.12:  # there is no such column, number or status
        frames, name = rng.choice(((PLAN_QUESTIONS, foreign(rng)), (BENCH_QUESTIONS, foreign(rng)), (HEALTH_QUESTIONS, foreign(rng)),
                                   (CODE_QUESTIONS, f"{rng.choice(('exit code', 'status'))} {rng.randint(4, 999)}")))
        if name in CODES:
            return table_questions(rng)
        return ask(rng, frames, called(rng, name) if frames is CODE_QUESTIONS else name), UNKNOWN, None
    if kind < 0.5:
        column, answer = plan_meaning(rng)
        return rng.choice(PLAN_ASKED[column]) if rng.random() < 0.2 else ask(rng, PLAN_QUESTIONS, column), answer, AND_PLAN
    if kind < 0.75:
        column, answer = bench_meaning(rng)
        return ask(rng, BENCH_QUESTIONS, column), answer, AND_BENCH
    if kind < 0.87:
        status = rng.choice(list(HEALTH))
        return ask(rng, HEALTH_QUESTIONS, status), f"In /health, {status} means that {HEALTH[status]}.", None
    code = rng.choice(list(CODES))
    return ask(rng, CODE_QUESTIONS, called(rng, code)), f"{code[0].upper() + code[1:]} means that {CODES[code]}.", None
