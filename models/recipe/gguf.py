"""Writes and reads GGUF version 3 files.

    write(path, {"general.architecture": "qwen35moe", "x.block_count": U32(8)}, {"output.weight": ("Q6_K", array)})
    metadata, tensors = read(path)     # tensors: name -> f32 array in PyTorch's order of dimensions
"""

import struct

import numpy as np

import quants

ALIGNMENT = 32
IDS = {name: spec[0] for name, spec in quants.TYPES.items()}


class U32(int):
    pass


class I32(int):
    pass


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value) -> tuple:
    """GGUF type id and bytes."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, I32):
        return 5, struct.pack("<i", value)
    if isinstance(value, int):
        return 4, struct.pack("<I", value)
    if isinstance(value, float):
        return 6, struct.pack("<f", value)
    if isinstance(value, str):
        return 8, _string(value)
    kinds, parts = zip(*(_value(v) for v in value))
    assert len(set(kinds)) == 1, "an array has one type"
    return 9, struct.pack("<IQ", kinds[0], len(value)) + b"".join(parts)


def write(path, metadata: dict, tensors: dict) -> None:
    """tensors: name -> (type, f32 array); arrays of experts are quantised row by row like matrices."""
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, value in metadata.items():
        kind, data = _value(value)
        head += _string(key) + struct.pack("<I", kind) + data
    blobs, offset = [], 0
    for name, (kind, array) in tensors.items():
        data = quants.quantise(kind, array.reshape(-1, array.shape[-1])).tobytes()
        head += _string(name) + struct.pack("<I", array.ndim)
        head += struct.pack(f"<{array.ndim}Q", *array.shape[::-1]) + struct.pack("<IQ", IDS[kind], offset)
        blobs.append(data + bytes(-len(data) % ALIGNMENT))
        offset += len(blobs[-1])
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT))
        for blob in blobs:
            f.write(blob)


def read(path) -> tuple:
    data = memoryview(open(path, "rb").read())
    at = 4
    assert bytes(data[:4]) == b"GGUF"

    def take(form: str):
        nonlocal at
        values = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize("<" + form)
        return values if len(values) > 1 else values[0]

    def string() -> str:
        nonlocal at
        size = take("Q")
        at += size
        return bytes(data[at - size:at]).decode()

    def value(kind: int):
        if kind == 8:
            return string()
        if kind == 9:
            inner, count = take("IQ")
            return [value(inner) for _ in range(count)]
        return take({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    _, n_tensor, n_key = take("IQQ")
    metadata = {}
    for _ in range(n_key):
        key = string()
        metadata[key] = value(take("I"))
    infos = []
    for _ in range(n_tensor):
        name, n_dim = string(), take("I")
        shape = [take("Q") for _ in range(n_dim)][::-1]
        infos.append((name, shape, *take("IQ")))
    at += -at % ALIGNMENT
    names = {number: name for name, number in IDS.items()}
    tensors = {}
    for name, shape, number, offset in infos:
        _, elems, size = quants.TYPES[names[number]]
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        raw = np.frombuffer(data, np.uint8, rows * shape[-1] // elems * size, at + offset).reshape(rows, -1)
        tensors[name] = quants.dequantise(names[number], raw).reshape(shape)
    return metadata, tensors
