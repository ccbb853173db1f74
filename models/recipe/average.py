"""The mean of several trainings' weights that began with the same ones: python3 average.py WEIGHTS.pt... --out FILE

Each training leaves the weights at another point of one valley; the mean lies nearer to its floor than they do.
"""

import argparse

from pathlib import Path

import torch

from train import save_whole


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", nargs="+")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    several = [torch.load(path, map_location="cpu") for path in options.weights]
    save_whole({name: torch.stack([w[name] for w in several]).mean(0) for name in several[0]}, Path(options.out))


if __name__ == "__main__":
    main()
