"""The mean of two phases' weights: python3 average.py A.pt B.pt OUT.pt

A phase that practises one thing moves away from others; half the way keeps most of both.
"""

import argparse
from pathlib import Path

import torch

from train import save_whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("a")
    parser.add_argument("b")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    a, b = (torch.load(file, map_location="cpu") for file in (options.a, options.b))
    assert a.keys() == b.keys(), "the files are not of one model"
    save_whole({name: (a[name].float() + b[name].float()) / 2 for name in a}, options.out)


if __name__ == "__main__":
    main()
