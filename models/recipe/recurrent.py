"""The gated delta rule token by token: the definition that delta.chunked is checked against, and the form on a CPU."""

import torch
from torch import Tensor


def recurrent(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Arguments and result as of delta.chunked."""
    rows, length, heads, dk = q.shape
    s = q.new_zeros(rows, heads, dk, v.shape[-1])
    out = []
    for t in range(length):
        s = s * g[:, t].exp()[..., None, None]
        delta = beta[:, t, :, None] * (v[:, t] - torch.einsum("rhkv,rhk->rhv", s, k[:, t]))
        s = s + k[:, t, :, :, None] * delta[:, :, None, :]
        out.append(torch.einsum("rhkv,rhk->rhv", s, q[:, t]))
    return torch.stack(out, 1)
