"""Block formats in numpy: quantise, dequantise. Layouts as GGUF documents them.

    data = quantise("Q6_K", rows)      # rows f32 [n, k], k a multiple of the block; uint8 [n, bytes]
    back = dequantise("Q6_K", data)    # f32 [n, k]
"""

import numpy as np

TYPES = {"F32": (0, 1, 4), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
         "Q6_K": (14, 256, 210)}  # name: (GGUF id, elements and bytes of a block)


def half(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16)


def as_bytes(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint8).reshape(x.shape[0], -1)


def safe_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.divide(a, b, out=np.zeros(np.broadcast(a, b).shape, np.float32), where=b != 0)


def quantise_q8_0(blocks: np.ndarray) -> np.ndarray:
    d = half(np.abs(blocks).max(1, keepdims=True) / 127)
    q = np.clip(np.rint(safe_divide(blocks, d.astype(np.float32))), -127, 127).astype(np.int8)
    return np.concatenate((as_bytes(d), as_bytes(q)), 1)


def dequantise_q8_0(data: np.ndarray) -> np.ndarray:
    return data[:, :2].copy().view(np.float16).astype(np.float32) * data[:, 2:].copy().view(np.int8)


def symmetric_scale(x: np.ndarray, most: int) -> np.ndarray:
    """The scale s of each row of x that makes x ~ s * n, n in [-most, most), best by least squares."""
    peak = np.take_along_axis(x, np.abs(x).argmax(1, keepdims=True), 1)
    best, scale = np.full(x.shape[0], -1.0, np.float32), np.zeros(x.shape[0], np.float32)
    for nudge in range(-9, 10):
        n = np.clip(np.rint(safe_divide(x * -(most + 0.1 * nudge), peak)), -most, most - 1)
        xn, nn = (x * n).sum(1), (n * n).sum(1)
        gain = safe_divide(xn * xn, nn)
        better = gain > best
        best, scale = np.where(better, gain, best), np.where(better, safe_divide(xn, nn), scale)
    return scale


def quantise_q6_k(blocks: np.ndarray) -> np.ndarray:
    count = len(blocks)
    x = blocks.reshape(-1, 16)
    s = symmetric_scale(x, 32).reshape(count, 16)
    peak = np.take_along_axis(s, np.abs(s).argmax(1, keepdims=True), 1)
    d = half(peak / -128)
    sc = np.clip(np.rint(safe_divide(s, d.astype(np.float32))), -128, 127).astype(np.int8)
    step = (d.astype(np.float32) * sc).reshape(-1, 1)
    n = (np.clip(np.rint(safe_divide(x, step)), -32, 31) + 32).astype(np.uint8).reshape(count, 2, 4, 32)
    low, high = n & 15, n >> 4
    ql = np.stack((low[:, :, 0] | low[:, :, 2] << 4, low[:, :, 1] | low[:, :, 3] << 4), 2)
    qh = high[:, :, 0] | high[:, :, 1] << 2 | high[:, :, 2] << 4 | high[:, :, 3] << 6
    return np.concatenate((as_bytes(ql), as_bytes(qh), as_bytes(sc), as_bytes(d)), 1)


def dequantise_q6_k(data: np.ndarray) -> np.ndarray:
    count = len(data)
    ql, qh = data[:, :128].reshape(count, 2, 2, 32), data[:, 128:192].reshape(count, 2, 32)
    sc = data[:, 192:208].copy().view(np.int8).astype(np.float32)
    d = data[:, 208:].copy().view(np.float16).astype(np.float32)
    n = np.stack((ql[:, :, 0] & 15 | (qh & 3) << 4, ql[:, :, 1] & 15 | (qh >> 2 & 3) << 4,
                  ql[:, :, 0] >> 4 | (qh >> 4 & 3) << 4, ql[:, :, 1] >> 4 | (qh >> 6) << 4), 2)
    n = n.reshape(count, 16, 16).astype(np.float32) - 32
    return ((d * sc)[:, :, None] * n).reshape(count, 256)


def affine_fit(x: np.ndarray, most: int) -> tuple:
    """Scale and minimum m >= 0 of each row so that x ~ scale * n - m, n in [0, most]."""
    low = np.minimum(x.min(1, keepdims=True), 0)
    span = x.max(1, keepdims=True) - low
    scale, minimum = (span / most)[:, 0], -low[:, 0]
    n = np.clip(np.rint(safe_divide(x - low, span / most)), 0, most)
    best = ((scale[:, None] * n - minimum[:, None] - x) ** 2).sum(1)
    for nudge in range(-10, 11):
        n = np.clip(np.rint(safe_divide((x - low) * (most + 0.1 * nudge), span)), 0, most)
        total, mean_n, mean_x = n.shape[1], n.mean(1), x.mean(1)
        spread = (n * n).sum(1) - total * mean_n**2
        s = safe_divide((n * x).sum(1) - total * mean_n * mean_x, spread)
        m = np.maximum(s * mean_n - mean_x, 0)
        s = np.where(m > 0, s, safe_divide((n * x).sum(1), (n * n).sum(1)))
        error = ((s[:, None] * n - m[:, None] - x) ** 2).sum(1)
        better = (error < best) & (s > 0)
        best, scale, minimum = np.where(better, error, best), np.where(better, s, scale), np.where(better, m, minimum)
    return scale, minimum


def pack_pairs(sc: np.ndarray, mn: np.ndarray) -> np.ndarray:
    """Eight 6-bit (scale, minimum) pairs into 12 bytes."""
    return np.concatenate((sc[:, :4] | (sc[:, 4:] >> 4) << 6, mn[:, :4] | (mn[:, 4:] >> 4) << 6,
                           sc[:, 4:] & 15 | (mn[:, 4:] & 15) << 4), 1)


def unpack_pairs(s: np.ndarray) -> tuple:
    sc = np.concatenate((s[:, :4] & 63, s[:, 8:] & 15 | (s[:, :4] >> 6) << 4), 1)
    mn = np.concatenate((s[:, 4:8] & 63, s[:, 8:] >> 4 | (s[:, 4:8] >> 6) << 4), 1)
    return sc.astype(np.float32), mn.astype(np.float32)


def quantise_affine(blocks: np.ndarray, bits: int) -> np.ndarray:
    count, most = len(blocks), (1 << bits) - 1
    x = blocks.reshape(-1, 32)
    scale, minimum = (v.reshape(count, 8) for v in affine_fit(x, most))
    d, dmin = half(scale.max(1, keepdims=True) / 63), half(minimum.max(1, keepdims=True) / 63)
    d32, dmin32 = d.astype(np.float32), dmin.astype(np.float32)
    sc = np.clip(np.rint(safe_divide(scale, d32)), 0, 63).astype(np.uint8)
    mn = np.clip(np.rint(safe_divide(minimum, dmin32)), 0, 63).astype(np.uint8)
    step, offset = (d32 * sc).reshape(-1, 1), (dmin32 * mn).reshape(-1, 1)
    n = np.clip(np.rint(safe_divide(x + offset, step)), 0, most).astype(np.uint8).reshape(count, 4, 2, 32)
    low = n & 15
    parts = [as_bytes(d), as_bytes(dmin), pack_pairs(sc, mn)]
    if bits == 5:
        shift = np.arange(8, dtype=np.uint8).reshape(4, 2, 1)
        parts.append(np.bitwise_or.reduce((n >> 4) << shift, axis=(1, 2)))
    return np.concatenate((*parts, as_bytes(low[:, :, 0] | low[:, :, 1] << 4)), 1)


def dequantise_affine(data: np.ndarray, bits: int) -> np.ndarray:
    count = len(data)
    d, dmin = (data[:, i:i + 2].copy().view(np.float16).astype(np.float32) for i in (0, 2))
    sc, mn = unpack_pairs(data[:, 4:16])
    q = data[:, -128:].reshape(count, 4, 1, 32)
    n = np.concatenate((q & 15, q >> 4), 2)
    if bits == 5:
        shift = np.arange(8, dtype=np.uint8).reshape(4, 2, 1)
        n = n | ((data[:, 16:48].reshape(count, 1, 1, 32) >> shift) & 1) << 4
    return ((d * sc)[:, :, None] * n.reshape(count, 8, 32) - (dmin * mn)[:, :, None]).reshape(count, 256)


def quantise(kind: str, rows: np.ndarray) -> np.ndarray:
    _, elems, size = TYPES[kind]
    rows = np.ascontiguousarray(rows, np.float32)
    if kind == "F32":
        return as_bytes(rows)
    blocks = rows.reshape(-1, elems)
    data = {"Q8_0": quantise_q8_0, "Q6_K": quantise_q6_k, "Q5_K": lambda b: quantise_affine(b, 5),
            "Q4_K": lambda b: quantise_affine(b, 4)}[kind](blocks)
    assert data.shape[1] == size
    return data.reshape(len(rows), -1)


def dequantise(kind: str, data: np.ndarray) -> np.ndarray:
    _, _, size = TYPES[kind]
    if kind == "F32":
        return data.copy().view(np.float32)
    back = {"Q8_0": dequantise_q8_0, "Q6_K": dequantise_q6_k, "Q5_K": lambda b: dequantise_affine(b, 5),
            "Q4_K": lambda b: dequantise_affine(b, 4)}[kind](data.reshape(-1, size))
    return back.reshape(len(data), -1)
