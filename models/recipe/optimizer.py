"""Muon for matrices, AdamW for everything else.

Muon: momentum, then the nearest orthogonal matrix by five Newton-Schulz steps in bf16; the update is
scaled to the root mean square of AdamW's, so one learning rate serves both.
"""

import torch

TABLES = ("token_embd.weight", "output.weight")
VECTORS = ("norm.weight", "ssm_a", "ssm_dt.bias", "ssm_conv1d.weight", "ffn_gate_inp.weight",
           "ffn_gate_inp_shexp.weight", "ssm_beta.weight", "ssm_alpha.weight")


def plain(name: str) -> bool:
    return name in TABLES or name.endswith(VECTORS)


def orthogonal(m: torch.Tensor) -> torch.Tensor:
    """Batched [n, a, b]."""
    x = m.bfloat16()
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        g = x @ x.mT
        x = 3.4445 * x + (-4.7750 * g + 2.0315 * (g @ g)) @ x
    return x.mT if tall else x


class Optimizer:
    def __init__(self, weights: dict, decay: float = 0.05, momentum: float = 0.95):
        self.decay, self.momentum = decay, momentum
        others = [w for name, w in weights.items() if plain(name)]
        self.rate = torch.zeros((), device=others[0].device)
        self.adam = torch.optim.AdamW(others, lr=self.rate, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True, capturable=True)
        groups: dict = {}
        for name, w in weights.items():
            if not plain(name):
                groups.setdefault(tuple(w.shape[-2:]), []).append(w)
        self.groups = list(groups.values())
        self.buffers = [[torch.zeros_like(w) for w in group] for group in self.groups]

    def state(self) -> dict:
        return {"adam": self.adam.state_dict(), "buffers": self.buffers}

    def restore(self, state: dict) -> None:
        self.adam.load_state_dict(state["adam"])
        for entry in self.adam.param_groups:
            entry["lr"] = self.rate
        for group, saved in zip(self.buffers, state["buffers"]):
            for buffer, values in zip(group, saved):
                buffer.copy_(values)

    @torch.no_grad()
    def step(self, rate: torch.Tensor) -> None:
        """`rate` is a scalar on the GPU: a graph that has recorded this reads another one each time."""
        self.rate.copy_(rate)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for group, buffers in zip(self.groups, self.buffers):
            grads = [w.grad for w in group]
            torch._foreach_lerp_(buffers, grads, 1 - self.momentum)
            looked = torch._foreach_lerp(grads, buffers, self.momentum)
            a, b = group[0].shape[-2:]
            updates = orthogonal(torch.cat([u.reshape(-1, a, b) for u in looked])).float() * (self.rate * (-0.2 * max(a, b) ** 0.5))
            updates = updates.split([w.numel() // (a * b) for w in group])
            torch._foreach_mul_(group, 1 - self.rate * self.decay)
            torch._foreach_add_(group, [u.reshape(w.shape) for u, w in zip(updates, group)])
            for w in group:
                w.grad = None
