#!/usr/bin/env python3
"""Turns the arrays of an .npz file into the .bin form that tests/golden_data.h reads.

usage: convert.py ANSWERS.npz ANSWERS.bin      (needs numpy)
"""

import struct
import sys

import numpy as np

DTYPES = {"float32": 0, "int32": 1}


def main() -> None:
    source, target = sys.argv[1:]
    arrays = np.load(source, allow_pickle=False)
    with open(target, "wb") as out:
        out.write(b"TSRGOLD1" + struct.pack("<I", len(arrays.files)))
        for name in arrays.files:
            array = np.ascontiguousarray(arrays[name])
            label = name.encode()
            out.write(struct.pack("<I", len(label)) + label)
            out.write(struct.pack("<II", DTYPES[array.dtype.name], array.ndim))
            out.write(struct.pack(f"<{array.ndim}Q", *array.shape))
            out.write(array.astype(array.dtype.newbyteorder("<")).tobytes())


if __name__ == "__main__":
    main()
