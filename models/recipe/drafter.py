"""The DFlash drafter: a few layers that fill a block of masked tokens in one pass, from the target's features.

The target, its embedding and its head are frozen. A row of the block at slot k >= 1 predicts the token
at its own position; slot 0 is the pending token. Context rows come from the target only, so nothing is
learned about positions that the target has not seen.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model import rms, rope


@dataclass(frozen=True)
class DraftConfig:
    width: int = 256
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ffn: int = 768
    captures: tuple = (1, 3, 5)  # outputs of these target layers
    block: int = 16
    rope_base: float = 1e7
    eps: float = 1e-6
    context: int = 16384


def shapes(c: DraftConfig) -> dict:
    out = {"fc.weight": (c.width, len(c.captures) * c.width), "enc.output_norm.weight": (c.width,), "output_norm.weight": (c.width,)}
    for i in range(c.layers):
        b = f"blk.{i}."
        out |= {b + "attn_norm.weight": (c.width,), b + "ffn_norm.weight": (c.width,),
                b + "attn_q.weight": (c.heads * c.head_dim, c.width), b + "attn_k.weight": (c.kv_heads * c.head_dim, c.width),
                b + "attn_v.weight": (c.kv_heads * c.head_dim, c.width), b + "attn_output.weight": (c.width, c.heads * c.head_dim),
                b + "attn_q_norm.weight": (c.head_dim,), b + "attn_k_norm.weight": (c.head_dim,),
                b + "ffn_gate.weight": (c.ffn, c.width), b + "ffn_up.weight": (c.ffn, c.width), b + "ffn_down.weight": (c.width, c.ffn)}
    return out


def initial(c: DraftConfig, seed: int) -> dict:
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(c).items():
        scale = 0.3 if name.endswith(("attn_output.weight", "ffn_down.weight")) else 0.7
        weights[name] = (torch.ones(shape) if len(shape) == 1
                         else torch.randn(shape, generator=generator) * scale / math.sqrt(shape[-1]))
    return weights


def turns(place: Tensor, c: DraftConfig) -> tuple:
    frequency = c.rope_base ** (-torch.arange(0, c.head_dim, 2, device=place.device, dtype=torch.float64) / c.head_dim)
    angle = (place[..., None].double() * frequency)[:, :, None]
    return angle.cos().float(), angle.sin().float()


def draft(w: dict, c: DraftConfig, features: Tensor, place: Tensor, block_embedding: Tensor, block_place: Tensor, mask: Tensor,
          dtype: torch.dtype) -> Tensor:
    """features [rows, T, captures * width], block_embedding [rows, Q, width], mask [rows, Q, T + Q] -> hidden [rows, Q, width]."""

    def product(x, name):
        return F.linear(x.to(dtype), w[name].to(dtype)).float()

    context = rms(product(features, "fc.weight"), w["enc.output_norm.weight"], c.eps)
    context_turn, block_turn = turns(place, c), turns(block_place, c)
    h = block_embedding
    for i in range(c.layers):
        b = f"blk.{i}."

        def heads(x, kind, count, turn):
            y = product(x, f"{b}attn_{kind}.weight").unflatten(-1, (count, c.head_dim))
            return rope(rms(y, w[f"{b}attn_{kind}_norm.weight"], c.eps), *turn) if turn else y

        n = rms(h, w[b + "attn_norm.weight"], c.eps)
        q = heads(n, "q", c.heads, block_turn)
        k = torch.cat((heads(context, "k", c.kv_heads, context_turn), heads(n, "k", c.kv_heads, block_turn)), 1)
        v = torch.cat((heads(context, "v", c.kv_heads, None), heads(n, "v", c.kv_heads, None)), 1)
        share = c.heads // c.kv_heads
        k, v = (u.repeat_interleave(share, 2) for u in (k, v))
        q, k, v = (u.transpose(1, 2).to(dtype) for u in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None]).transpose(1, 2).flatten(2)
        h = h + product(o, b + "attn_output.weight")
        m = rms(h, w[b + "ffn_norm.weight"], c.eps)
        h = h + product(F.silu(product(m, b + "ffn_gate.weight")) * product(m, b + "ffn_up.weight"), b + "ffn_down.weight")
    return rms(h, w["output_norm.weight"], c.eps)


def blocks(ids: Tensor, place: Tensor, document: Tensor, anchors: Tensor, size: int, mask_id: int) -> tuple:
    """Block ids, positions and the attention mask for anchors [rows, A] (indices into the row).

    A block sees the context before its anchor in the same document, and itself in both directions.
    """
    rows, length = ids.shape
    count = anchors.shape[1]
    block_ids = torch.full((rows, count, size), mask_id, device=ids.device)
    block_ids[:, :, 0] = ids.gather(1, anchors)
    block_place = place.gather(1, anchors)[..., None] + torch.arange(size, device=ids.device)
    t = torch.arange(length, device=ids.device)
    context = (t < anchors[..., None]) & (document[:, None] == document.gather(1, anchors)[..., None])
    context = context.repeat_interleave(size, 1)
    own = torch.arange(count, device=ids.device).repeat_interleave(size)
    own = (own[:, None] == own).expand(rows, -1, -1)
    return block_ids.flatten(1), block_place.flatten(1), torch.cat((context, own), 2)
