"""Training steps as CUDA graphs: a step is over a thousand kernels, which one core launches more slowly than the GPU runs them.

    step = Graphs(function)
    step(*arrays)           # function(*tensors on the GPU), recorded once for each set of sizes and replayed from then on

What the function changes in place (weights, moments) it changes at each call; the tensor that it returns is written again
by the next call. It must not wait for the GPU, and every size inside it must follow from its arguments' sizes.
"""

from collections import Counter

import numpy as np
import torch

WARM = 3  # calls of one set of sizes before it is recorded: compilers and libraries set themselves up in them


def sent(array: np.ndarray) -> torch.Tensor:
    """On the GPU, without waiting for it."""
    return torch.from_numpy(array).pin_memory().cuda(non_blocking=True)


class Graphs:
    def __init__(self, function, warm: int = WARM):
        self.function, self.warm = function, warm
        self.calls, self.recorded = Counter(), {}
        self.stream, self.pool = torch.cuda.Stream(), torch.cuda.graph_pool_handle()

    def __call__(self, *arrays: np.ndarray) -> torch.Tensor:
        outside = torch.cuda.current_stream()
        self.stream.wait_stream(outside)
        with torch.cuda.stream(self.stream):
            result = self.run(arrays)
        outside.wait_stream(self.stream)
        return result

    def run(self, arrays: tuple) -> torch.Tensor:
        sizes = tuple(array.shape for array in arrays)
        self.calls[sizes] += 1
        if self.calls[sizes] <= self.warm:
            return self.function(*map(sent, arrays))
        if sizes not in self.recorded:
            self.recorded[sizes] = self.record([sent(array) for array in arrays])
        graph, held, result = self.recorded[sizes]
        for to, array in zip(held, arrays):
            to.copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        graph.replay()
        return result

    def record(self, held: list) -> tuple:
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Of other threads, NCCL's one that watches earlier sums may go on.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            result = self.function(*held)
        return graph, held, result


def padded(indices: np.ndarray, step: int, value: int) -> np.ndarray:
    """Up to the next multiple of `step`, so that few sizes occur."""
    return np.pad(indices, (0, -len(indices) % step), constant_values=value)
