"""The GPUs that share a training: a process each, which takes its rows of every batch; sums go over all of them.

    run(train, options)     # train(ranks, options) on every GPU that PyTorch sees

What is summed has the same bits on every GPU, so their weights stay equal without being sent.
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing


class Ranks:
    def __init__(self, rank: int, count: int, meeting: str):
        self.rank, self.count = rank, count
        torch.cuda.set_device(rank)
        if count > 1:
            dist.init_process_group("nccl", init_method=f"file://{meeting}", rank=rank, world_size=count)

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def rows(self, count: int) -> range:
        """This one's part of a batch's rows."""
        return range(count * self.rank // self.count, count * (self.rank + 1) // self.count)

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def sum_gradients(self, w: dict) -> None:
        if self.count == 1:
            return
        gradients = [u.grad for u in w.values()]
        flat = self.sum(torch.cat([g.flatten() for g in gradients]))
        parts = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients)])


def processors() -> int:
    """For the workers that make a GPU's batches; two cores are left for the training itself."""
    return max(1, (len(os.sched_getaffinity(0)) - 2) // max(1, torch.cuda.device_count()))


def begin(rank: int, count: int, meeting: str, train, options) -> None:
    train(Ranks(rank, count, meeting), options)
    if count > 1:
        dist.destroy_process_group()


def run(train, options) -> None:
    count = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (count, str(Path(folder) / "meeting"), train, options)
        if count > 1:
            torch.multiprocessing.spawn(begin, arguments, count)
        else:
            begin(0, *arguments)
