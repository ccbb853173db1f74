#!/usr/bin/env python3
"""How far the gated delta rule's outputs are from f64 when its state is rounded after each token.

One head of 128 x 128, random tokens, values of very different sizes. Ways to keep the state: f32;
levels of 16 bits with a step a column, a power of two, to the nearest; the same, up or down by
chance; f16; and, for comparison, f64 with q, k and v rounded to 8 bits per 32 columns. Each figure
is the mean relative error of a row's outputs, in the first and in the last quarter of the tokens.
Heads differ in how fast they forget and how much they write: `often` is beta around a half,
`seldom` around 1e-4, `then nothing` a text of which only the first eighth is written. Wants numpy;
docs/gpu-kernels-measured.md, "State in levels of 16 bits", has the table.

    bench/state_error.py [tokens]
"""

import sys

import numpy as np

DIM = 128


def as_levels(state, rounding):
    """state[k][column]"""
    top = np.abs(state).max(axis=0)
    exponent = np.floor(np.log2(np.maximum(top * (1 + 2.0**-16), 2.0**-112)))
    step = 2.0 ** (exponent - 14)
    return rounding(state / step) * step


def by_chance(random):
    return lambda x: np.floor(x + random.random(x.shape))


def eight_bits(x):
    groups = x.reshape(-1, 32)
    scale = np.abs(groups).max(axis=1, keepdims=True) / 127
    return (np.rint(groups / scale) * scale).reshape(-1)


def ways():
    chance = by_chance(np.random.default_rng(4))
    return {
        "f64": lambda state: state,
        "f32": lambda state: state.astype(np.float32).astype(np.float64),
        "16 bits": lambda state: as_levels(state, np.rint),
        "by chance": lambda state: as_levels(state, chance),
        "f16": lambda state: state.astype(np.float16).astype(np.float64),
        "8-bit q, k, v": lambda state: state,
    }


def errors(tokens, decay_rate, writes):
    random = np.random.default_rng(3)
    stored = ways()
    states = {name: np.zeros((DIM, DIM)) for name in stored}
    error = {name: [] for name in stored}
    for token in range(tokens):
        k, q = random.normal(size=DIM), random.normal(size=DIM)
        k, q = k / np.linalg.norm(k), q / np.linalg.norm(q)
        v = random.normal(size=DIM) * np.exp(random.normal())
        beta = 1 / (1 + np.exp(-random.normal() + (9 if writes == "seldom" else 0)))
        if writes == "then nothing" and token >= tokens // 8:
            beta = 0.0
        decay = np.exp(-decay_rate * np.log1p(np.exp(random.normal())))
        out = {}
        for name, keep in stored.items():
            few = eight_bits if name == "8-bit q, k, v" else lambda x: x
            state = states[name] * decay
            state = state + np.outer(few(k), beta * (few(v) - state.T @ few(k)))
            out[name] = state.T @ few(q)
            states[name] = keep(state)
        size = np.linalg.norm(out["f64"])
        for name in stored:
            error[name].append(np.linalg.norm(out[name] - out["f64"]) / size)
    quarter = tokens // 4
    return {name: (np.mean(e[:quarter]), np.mean(e[-quarter:])) for name, e in error.items()}


def main():
    tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    names = [name for name in ways() if name != "f64"]
    print("decay rate  writes        " + "".join(f"{name:>18}" for name in names))
    for writes in ("often", "seldom", "then nothing"):
        for decay_rate in (0.01, 1e-4, 1e-5):
            of = errors(tokens, decay_rate, writes)
            cells = "".join(f"{of[name][0]:>9.0e},{of[name][1]:>8.0e}" for name in names)
            print(f"{decay_rate:<10}  {writes:<14}{cells}")


if __name__ == "__main__":
    main()
