"""Compares the chunked gated delta rule with the recurrent one, gradients included, on the GPU."""

import torch

import delta
from recurrent import recurrent


def main() -> None:
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    shape = (2, 256, 4, 128)
    q, k, v = (torch.randn(shape, device="cuda") for _ in range(3))
    q, k = (u / u.norm(dim=-1, keepdim=True) for u in (q, k + 0.7 * k[:, :1]))
    g = -torch.rand(shape[:3], device="cuda") * torch.tensor([0.01, 0.1, 1, 5], device="cuda")
    g[:, 100] = -60.0
    beta = torch.rand(shape[:3], device="cuda")
    seed = torch.randn(shape, device="cuda")

    def run(f, dtype):
        inputs = [u.to(dtype).clone().requires_grad_() for u in (q, k, v, g, beta)]
        out = f(*inputs)
        out.backward(seed.to(out.dtype))
        return [out.detach().double(), *(u.grad.double() for u in inputs)]

    exact = run(recurrent, torch.float64)
    for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
        got = run(lambda *a: delta.chunked(*a, dtype), torch.float32)
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(got, exact)]
        print(name, " ".join(f"{n} {e:.1e}" for n, e in zip(("out", "dq", "dk", "dv", "dg", "dbeta"), errors)))


if __name__ == "__main__":
    main()
