"""Trains a tokenizer on a sample of the generated text: python3 train_tokenizer.py TOKENIZER.json"""

import sys
from pathlib import Path

from text import bpe
from text.chat import render
from text.corpus import training_conversation
from text.words import dice

VOCAB_SIZE = 4096
SAMPLE = 20000


def main() -> None:
    rng = dice("tokenizer/7")
    texts = ("".join(t for t, _ in render(training_conversation(rng, 1024, 0.15))) for _ in range(SAMPLE))
    merges = bpe.train(texts, VOCAB_SIZE - 256 - len(bpe.SPECIALS))
    tokenizer = bpe.Tokenizer(merges, VOCAB_SIZE)
    tokenizer.save(Path(sys.argv[1]))
    print(f"{len(merges)} merges, {tokenizer.n_used} tokens used of {VOCAB_SIZE}")


if __name__ == "__main__":
    main()
