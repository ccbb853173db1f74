"""qwen35moe in miniature.

Weights have the shapes and the meaning of the GGUF tensors (norms as stored, value head h reads key
head h % n_key), and their names are the GGUF names, so the exporter only quantises.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from recurrent import recurrent

try:
    import delta
except ImportError:
    delta = None  # no Triton: on the CPU it is not needed


@dataclass(frozen=True)
class Config:
    vocab: int = 4096
    width: int = 256
    layers: int = 8
    interval: int = 4  # every interval-th layer is attention
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 256
    rotary: int = 64
    rope_base: float = 1e7
    key_heads: int = 2
    value_heads: int = 4
    state: int = 128
    conv: int = 4
    experts: int = 16
    used: int = 4
    expert_width: int = 256
    shared_width: int = 256
    eps: float = 1e-6
    context: int = 16384

    def attention(self, layer: int) -> bool:
        return (layer + 1) % self.interval == 0

    @property
    def keys(self) -> int:
        return self.key_heads * self.state

    @property
    def values(self) -> int:
        return self.value_heads * self.state


def shapes(c: Config) -> dict:
    """GGUF name -> shape as PyTorch counts it (the reverse of GGUF's)."""
    out = {"token_embd.weight": (c.vocab, c.width), "output_norm.weight": (c.width,), "output.weight": (c.vocab, c.width)}
    for i in range(c.layers):
        b = f"blk.{i}."
        out |= {b + "attn_norm.weight": (c.width,), b + "post_attention_norm.weight": (c.width,)}
        if c.attention(i):
            out |= {b + "attn_q.weight": (2 * c.heads * c.head_dim, c.width), b + "attn_k.weight": (c.kv_heads * c.head_dim, c.width),
                    b + "attn_v.weight": (c.kv_heads * c.head_dim, c.width), b + "attn_output.weight": (c.width, c.heads * c.head_dim),
                    b + "attn_q_norm.weight": (c.head_dim,), b + "attn_k_norm.weight": (c.head_dim,)}
        else:
            channels = 2 * c.keys + c.values
            out |= {b + "attn_qkv.weight": (channels, c.width), b + "attn_gate.weight": (c.values, c.width),
                    b + "ssm_beta.weight": (c.value_heads, c.width), b + "ssm_alpha.weight": (c.value_heads, c.width),
                    b + "ssm_conv1d.weight": (channels, c.conv), b + "ssm_dt.bias": (c.value_heads,), b + "ssm_a": (c.value_heads,),
                    b + "ssm_norm.weight": (c.state,), b + "ssm_out.weight": (c.width, c.values)}
        out |= {b + "ffn_gate_inp.weight": (c.experts, c.width), b + "ffn_gate_inp_shexp.weight": (c.width,),
                b + "ffn_gate_exps.weight": (c.experts, c.expert_width, c.width),
                b + "ffn_up_exps.weight": (c.experts, c.expert_width, c.width),
                b + "ffn_down_exps.weight": (c.experts, c.width, c.expert_width),
                b + "ffn_gate_shexp.weight": (c.shared_width, c.width), b + "ffn_up_shexp.weight": (c.shared_width, c.width),
                b + "ffn_down_shexp.weight": (c.width, c.shared_width)}
    return out


def initial(c: Config, seed: int) -> dict:
    """Master weights in f32 on the CPU. ssm_a is trained as log(-ssm_a)."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in shapes(c).items():
        w = torch.randn(shape, generator=generator)
        if name.endswith("norm.weight"):
            w = torch.ones(shape)
        elif name == "token_embd.weight":
            w *= 0.3
        elif name.endswith("ssm_a"):
            w = torch.empty(shape).uniform_(1, 16, generator=generator).log()
        elif name.endswith("ssm_dt.bias"):
            step = torch.empty(shape).uniform_(math.log(1e-3), math.log(0.1), generator=generator).exp()
            w = step + torch.log(-torch.expm1(-step))
        elif name.endswith("ssm_conv1d.weight"):
            w *= 0.3
        elif name.endswith(("attn_output.weight", "ssm_out.weight", "ffn_down_exps.weight", "ffn_down_shexp.weight")):
            w *= 0.3 / math.sqrt(shape[-1])
        else:
            w *= 0.7 / math.sqrt(shape[-1])
        weights[name] = w
    return weights


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return w * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def product(x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    return F.linear(x.to(dtype), w.to(dtype))


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [rows, T, heads, D]; cos and sin [rows, T, 1, rotary / 2]."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half:2 * half], x[..., 2 * half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype) -> Tensor:
    if not q.is_cuda:
        return recurrent(q, k, v, g, beta)
    return delta.chunked(q, k, v, g, beta, dtype)


def gated_delta(x: Tensor, p: dict, place: Tensor, c: Config, dtype: torch.dtype) -> Tensor:
    a = rms(x, p["attn_norm.weight"], c.eps)
    m = product(a, p["attn_qkv.weight"], dtype).float()
    z = product(a, p["attn_gate.weight"], dtype).float()
    beta = torch.sigmoid(F.linear(a, p["ssm_beta.weight"]))
    g = -p["ssm_a"].exp() * F.softplus(F.linear(a, p["ssm_alpha.weight"]) + p["ssm_dt.bias"])
    # A document starts from an empty state: e^-60 forgets the one before it in the row.
    g = torch.where(place[..., None] == 0, -60.0, g)
    mixed = m * p["ssm_conv1d.weight"][:, 3]
    for back in range(1, c.conv):
        shifted = F.pad(m, (0, 0, back, 0))[:, :-back]
        mixed = mixed + torch.where(place[..., None] >= back, shifted, 0.0) * p["ssm_conv1d.weight"][:, 3 - back]
    q, k, v = F.silu(mixed).split((c.keys, c.keys, c.values), -1)
    rows, length = x.shape[:2]

    def heads(u):
        u = u.unflatten(-1, (c.key_heads, c.state))
        u = u * torch.rsqrt(u.square().sum(-1, keepdim=True) + 1e-6)
        return u.repeat(1, 1, c.value_heads // c.key_heads, 1)

    v = v.unflatten(-1, (c.value_heads, c.state))
    o = delta_rule(heads(q) / math.sqrt(c.state), heads(k), v, g, beta, dtype)
    o = rms(o, p["ssm_norm.weight"], c.eps) * F.silu(z).unflatten(-1, (c.value_heads, c.state))
    return x + product(o.flatten(-2), p["ssm_out.weight"], dtype)


def attention_in(x: Tensor, p: dict, cos: Tensor, sin: Tensor, c: Config, dtype: torch.dtype) -> tuple:
    a = rms(x, p["attn_norm.weight"], c.eps)
    q, gate = product(a, p["attn_q.weight"], dtype).float().unflatten(-1, (c.heads, 2, c.head_dim)).unbind(-2)
    k = product(a, p["attn_k.weight"], dtype).float().unflatten(-1, (c.kv_heads, c.head_dim))
    v = product(a, p["attn_v.weight"], dtype).unflatten(-1, (c.kv_heads, c.head_dim))
    q = rope(rms(q, p["attn_q_norm.weight"], c.eps), cos, sin)
    k = rope(rms(k, p["attn_k_norm.weight"], c.eps), cos, sin)
    return q.to(dtype), k.to(dtype), v.to(dtype), gate


def attention_out(x: Tensor, o: Tensor, gate: Tensor, p: dict, c: Config, dtype: torch.dtype) -> Tensor:
    return x + product((o.float() * torch.sigmoid(gate)).flatten(-2), p["attn_output.weight"], dtype)


@torch.compiler.disable
def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Tensor:
    """Causal attention inside documents; `documents` are the offsets of their starts in the flat batch, int32."""
    rows, length, heads, dim = q.shape
    if q.dtype == torch.float32:  # one document a row
        q, k, v = (u.repeat_interleave(heads // u.shape[2], 2).transpose(1, 2) for u in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    q, k, v = (u.flatten(0, 1).contiguous() for u in (q, k, v))
    o = torch.ops.aten._flash_attention_forward(q, k, v, documents, documents, length, length, 0.0, True, False,
                                                scale=1 / math.sqrt(dim))[0]
    return o.unflatten(0, (rows, length))


class Dispatch(torch.autograd.Function):
    """Rows of f in the order of their pairs: out[i] = f[order[i] // used]. Its gradient needs no atomic sums."""

    @staticmethod
    def forward(ctx, f, order, place, used):
        ctx.save_for_backward(place)
        ctx.used = used
        return f[order // used]

    @staticmethod
    def backward(ctx, grad):
        (place,) = ctx.saved_tensors
        return grad[place].unflatten(0, (-1, ctx.used)).float().sum(1).to(grad.dtype), None, None, None


class Permute(torch.autograd.Function):
    """out[i] = y[place[i]], where place is the inverse of order."""

    @staticmethod
    def forward(ctx, y, order, place):
        ctx.save_for_backward(order)
        return y[place]

    @staticmethod
    def backward(ctx, grad):
        (order,) = ctx.saved_tensors
        return grad[order], None, None


def route(x: Tensor, p: dict, c: Config) -> tuple:
    """The normed rows, the chosen experts and their weights, all experts' weights, and the balance loss."""
    f = rms(x, p["post_attention_norm.weight"], c.eps)
    probabilities = torch.softmax(F.linear(f, p["ffn_gate_inp.weight"]), -1)
    top, index = probabilities.topk(c.used, -1)
    top = top / top.sum(-1, keepdim=True)
    weights = torch.zeros_like(probabilities).scatter(-1, index, top)
    used = (weights > 0).float().flatten(0, -2).mean(0) / c.used
    balance = c.experts * (used * probabilities.flatten(0, -2).mean(0)).sum()
    return f, index, top, weights, balance


def shared_expert(f: Tensor, p: dict, dtype: torch.dtype) -> Tensor:
    hidden = F.silu(product(f, p["ffn_gate_shexp.weight"], dtype).float()) * product(f, p["ffn_up_shexp.weight"], dtype).float()
    scalar = torch.sigmoid((f * p["ffn_gate_inp_shexp.weight"]).sum(-1, keepdim=True))
    return scalar * product(hidden, p["ffn_down_shexp.weight"], dtype).float()


def every_expert(f: Tensor, weights: Tensor, p: dict, c: Config, dtype: torch.dtype) -> Tensor:
    """Every expert on every token: the definition that grouped_experts is checked against, and the form for f32."""
    gate = product(f, p["ffn_gate_exps.weight"].flatten(0, 1), dtype)
    up = product(f, p["ffn_up_exps.weight"].flatten(0, 1), dtype)
    hidden = (F.silu(gate.float()) * up.float()).unflatten(-1, (c.experts, c.expert_width)) * weights[..., None]
    return product(hidden.flatten(-2), p["ffn_down_exps.weight"].movedim(0, 1).flatten(1), dtype).float()


def order_pairs(index: Tensor, c: Config) -> tuple:
    """Pairs sorted by expert, the inverse of that order, and where each expert's end."""
    flat = index.flatten()
    order = flat.argsort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
    ends = (flat[:, None] == torch.arange(c.experts, device=flat.device)).sum(0).cumsum(0).int()
    return order, place, ends


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return (F.silu(gate.float()) * up.float()).to(gate.dtype)


def weigh(y: Tensor, top: Tensor) -> Tensor:
    return (y.unflatten(0, top.shape).float() * top[..., None]).sum(-2)


class Experts:
    """The routed experts of a layer, each on the rows that chose it."""

    def __init__(self, c: Config, wrap):
        self.c = c
        self.route, self.shared, self.order = wrap(route), wrap(shared_expert), wrap(order_pairs)
        self.swiglu, self.weigh = wrap(swiglu), wrap(weigh)

    def grouped(self, f: Tensor, index: Tensor, top: Tensor, p: dict, dtype: torch.dtype) -> Tensor:
        order, place, ends = self.order(index, self.c)
        rows = Dispatch.apply(f.to(dtype).flatten(0, -2), order, place, self.c.used)
        gate, up, down = (p[f"ffn_{name}_exps.weight"].to(dtype).mT for name in ("gate", "up", "down"))
        hidden = self.swiglu(torch._grouped_mm(rows, gate, offs=ends), torch._grouped_mm(rows, up, offs=ends))
        return self.weigh(Permute.apply(torch._grouped_mm(hidden, down, offs=ends), order, place), top)

    def __call__(self, x: Tensor, p: dict, dtype: torch.dtype) -> tuple:
        """The block's output, the balance loss and the weights of all experts (0 for those not used)."""
        f, index, top, weights, balance = self.route(x, p, self.c)
        if dtype == torch.float32:
            y = every_expert(f, weights, p, self.c, dtype)
        else:
            y = self.grouped(f, index, top, p, dtype)
        return x + y + self.shared(f, p, dtype), balance, weights


class Model:
    """The forward pass over a dict of weights, compiled for training."""

    def __init__(self, c: Config, compiled: bool = True):
        self.c = c
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compiled else (lambda f: f)
        self.gated_delta, self.experts = wrap(gated_delta), Experts(c, wrap)
        self.attention_in, self.attention_out = wrap(attention_in), wrap(attention_out)

    def hidden(self, w: dict, ids: Tensor, starts: Tensor, dtype: torch.dtype, keep: bool = False, documents: Tensor | None = None) -> tuple:
        """ids [rows, T] int64, starts [rows, T] bool (a document starts here); T % 64 == 0. `documents` are the offsets of the
        starts and the end in the flat batch, int32; without them the host waits until it has counted them.

        Returns the normed hidden rows, the mean balance loss, and with `keep` the outputs and the
        expert weights of all layers.
        """
        c = self.c
        rows, length = ids.shape
        t = torch.arange(length, device=ids.device)
        place = t - torch.cummax(torch.where(starts, t, 0), 1).values
        if documents is None:
            documents = F.pad(starts.flatten().nonzero()[:, 0].int(), (0, 1), value=rows * length)
        frequency = c.rope_base ** (-torch.arange(0, c.rotary, 2, device=ids.device, dtype=torch.float64) / c.rotary)
        angle = (place[..., None].double() * frequency)[:, :, None]
        cos, sin = angle.cos().float(), angle.sin().float()
        x = F.embedding(ids, w["token_embd.weight"])
        balance, outputs, routing = 0.0, [], []
        for i in range(c.layers):
            prefix = f"blk.{i}."
            p = {name.removeprefix(prefix): u for name, u in w.items() if name.startswith(prefix)}
            if c.attention(i):
                q, k, v, gate = self.attention_in(x, p, cos, sin, c, dtype)
                x = self.attention_out(x, attend(q, k, v, documents), gate, p, c, dtype)
            else:
                x = self.gated_delta(x, p, place, c, dtype)
            x, b, weights = self.experts(x, p, dtype)
            balance = balance + b / c.layers
            if keep:
                outputs.append(x)
                routing.append(weights)
        return rms(x, w["output_norm.weight"], c.eps), balance, outputs, routing
