"""The gated delta rule in chunks of 64 tokens, for training.

Formulas: the chunked form of Gated DeltaNet. With c the running sum of the log decays inside a chunk,
G_ij = exp(c_i - c_j) for j <= i and L = strictly lower part of diag(beta) K K^T * G:

    T = (I + L)^-1,  W = T (beta V),  Y = T (beta e^c K),  U = W - Y S
    O = (e^c q) S + (q K^T * G) U,    S' = e^c_last S + (e^(c_last - c) K)^T U

Only S -> S' is sequential; it and the inverse are Triton kernels, the rest is batched products.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 64


@triton.jit
def _invert_kernel(l_ptr, t_ptr, C: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * C * C
    row = tl.arange(0, C)
    t = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
    for i in range(1, C):
        left = tl.load(l_ptr + base + i * C + row)
        new = tl.where(row == i, 1.0, 0.0) - tl.sum(left[:, None] * t, axis=0)
        t = tl.where(row[:, None] == i, new[None, :], t)
    tl.store(t_ptr + base + row[:, None] * C + row[None, :], t)


@triton.jit
def _scan_kernel(w_ptr, y_ptr, k_ptr, d_ptr, u_ptr, s_ptr, n_chunk, C: tl.constexpr, DK: tl.constexpr,
                 DV: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr):
    rc = tl.arange(0, C)
    rk = tl.arange(0, DK)
    rv = tl.program_id(0) * BV + tl.arange(0, BV)
    s = tl.zeros([DK, BV], dtype=tl.float32)
    for n in range(n_chunk):
        at = tl.program_id(1).to(tl.int64) * n_chunk + n
        tl.store(s_ptr + at * DK * DV + rk[:, None] * DV + rv[None, :], s)
        y = tl.load(y_ptr + at * C * DK + rc[:, None] * DK + rk[None, :])
        k = tl.load(k_ptr + at * C * DK + rc[:, None] * DK + rk[None, :])
        w = tl.load(w_ptr + at * C * DV + rc[:, None] * DV + rv[None, :]).to(tl.float32)
        u = w - tl.dot(y, s.to(y.dtype), input_precision=PRECISION)
        tl.store(u_ptr + at * C * DV + rc[:, None] * DV + rv[None, :], u)
        s = s * tl.load(d_ptr + at) + tl.dot(tl.trans(k), u.to(k.dtype), input_precision=PRECISION)


@triton.jit
def _scan_back_kernel(du_ptr, ds_ptr, y_ptr, k_ptr, d_ptr, dw_ptr, g_ptr, n_chunk, C: tl.constexpr, DK: tl.constexpr,
                      DV: tl.constexpr, BV: tl.constexpr, PRECISION: tl.constexpr):
    rc = tl.arange(0, C)
    rk = tl.arange(0, DK)
    rv = tl.program_id(0) * BV + tl.arange(0, BV)
    g = tl.zeros([DK, BV], dtype=tl.float32)
    for step in range(n_chunk):
        at = tl.program_id(1).to(tl.int64) * n_chunk + (n_chunk - 1 - step)
        tl.store(g_ptr + at * DK * DV + rk[:, None] * DV + rv[None, :], g)
        y = tl.load(y_ptr + at * C * DK + rc[:, None] * DK + rk[None, :])
        k = tl.load(k_ptr + at * C * DK + rc[:, None] * DK + rk[None, :])
        du = tl.load(du_ptr + at * C * DV + rc[:, None] * DV + rv[None, :]).to(tl.float32)
        du += tl.dot(k, g.to(k.dtype), input_precision=PRECISION)
        tl.store(dw_ptr + at * C * DV + rc[:, None] * DV + rv[None, :], du)
        ds = tl.load(ds_ptr + at * DK * DV + rk[:, None] * DV + rv[None, :]).to(tl.float32)
        g = g * tl.load(d_ptr + at) + ds - tl.dot(tl.trans(y), du.to(y.dtype), input_precision=PRECISION)


@torch.library.custom_op("tessera_mini::invert", mutates_args=())
def invert(lower: Tensor) -> Tensor:
    """(I + lower)^-1 of strictly lower triangular f32 matrices [..., 64, 64]."""
    lower = lower.contiguous()
    out = torch.empty_like(lower)
    _invert_kernel[(lower.numel() // CHUNK**2,)](lower, out, CHUNK, num_warps=2)
    return out


@invert.register_fake
def _(lower):
    return torch.empty_like(lower, memory_format=torch.contiguous_format)


def _invert_save(ctx, inputs, output):
    ctx.save_for_backward(output)


def _invert_back(ctx, grad):
    (t,) = ctx.saved_tensors
    return -(t.mT @ grad @ t.mT).tril(-1)


invert.register_autograd(_invert_back, setup_context=_invert_save)


def _precision(x: Tensor) -> str:
    return "ieee" if x.dtype == torch.float32 else "tf32"


@torch.library.custom_op("tessera_mini::scan", mutates_args=())
def scan(w: Tensor, y: Tensor, k: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    """U and the state before each chunk; w [rows, chunks, 64, DV], y and k [.., 64, DK], d [rows, chunks] f32."""
    rows, chunks, c, dv = w.shape
    dk = y.shape[-1]
    u = torch.empty_like(w, memory_format=torch.contiguous_format)
    s = torch.empty(rows, chunks, dk, dv, dtype=w.dtype, device=w.device)
    bv = 32
    _scan_kernel[(dv // bv, rows)](w.contiguous(), y.contiguous(), k.contiguous(), d.contiguous(), u, s, chunks, c, dk, dv,
                                   bv, _precision(w), num_warps=4)
    return u, s


@scan.register_fake
def _(w, y, k, d):
    rows, chunks, _, dv = w.shape
    return torch.empty_like(w, memory_format=torch.contiguous_format), w.new_empty(rows, chunks, y.shape[-1], dv)


@torch.library.custom_op("tessera_mini::scan_back", mutates_args=())
def scan_back(du: Tensor, ds: Tensor, y: Tensor, k: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    rows, chunks, c, dv = du.shape
    dk = y.shape[-1]
    dw = torch.empty_like(du, memory_format=torch.contiguous_format)
    g = torch.empty(rows, chunks, dk, dv, dtype=du.dtype, device=du.device)
    bv = 32
    _scan_back_kernel[(dv // bv, rows)](du.contiguous(), ds.contiguous(), y.contiguous(), k.contiguous(), d.contiguous(),
                                        dw, g, chunks, c, dk, dv, bv, _precision(du), num_warps=4)
    return dw, g


@scan_back.register_fake
def _(du, ds, y, k, d):
    rows, chunks, _, dv = du.shape
    return torch.empty_like(du, memory_format=torch.contiguous_format), du.new_empty(rows, chunks, y.shape[-1], dv)


def _scan_save(ctx, inputs, output):
    _, y, k, d = inputs
    ctx.save_for_backward(y, k, d, *output)


def _scan_grad(ctx, du, ds):
    y, k, d, u, s = ctx.saved_tensors
    dw, g = scan_back(du, ds, y, k, d)
    return dw, -(dw @ s.mT), u @ g.mT, (g.float() * s.float()).sum((-1, -2))


scan.register_autograd(_scan_grad, setup_context=_scan_save)


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, dtype: torch.dtype) -> Tensor:
    """q, k [rows, T, H, DK] (normalised, q scaled), v [rows, T, H, DV], g and beta [rows, T, H] f32; T % 64 == 0."""
    rows, length, heads, _ = q.shape

    def split(x):
        return x.reshape(rows, length // CHUNK, CHUNK, heads, *x.shape[3:]).movedim(3, 1).flatten(0, 1)

    q, k, v, g, beta = (split(x) for x in (q, k, v, g, beta))  # [rows * heads, chunks, 64, ...]
    c = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (c[..., :, None] - c[..., None, :]).masked_fill(~lower, float("-inf")).exp()
    kd, qd = k.to(dtype), q.to(dtype)
    products = (kd @ kd.mT).float() * decay * beta[..., None]
    t = invert(products.tril(-1)).to(dtype)
    w = t @ (v * beta[..., None]).to(dtype)
    y = t @ (k * (beta * c.exp())[..., None]).to(dtype)
    last = c[..., -1:]
    u, s = scan(w, y, (k * (last - c).exp()[..., None]).to(dtype), last[..., 0].exp())
    o = (q * c.exp()[..., None]).to(dtype) @ s + ((qd @ kd.mT).float() * decay).to(dtype) @ u
    return o.float().unflatten(0, (rows, heads)).movedim(1, 3).reshape(rows, length, heads, -1)
