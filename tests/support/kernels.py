"""Recurrence kernels of every kind, seeded tensors, and the largest tensor that a block makes."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from holdover.ops.rem import Kernels, make_kernels

KINDS = ("regular", "regular", "cos", "sin")
RATES = (0.9, -0.8, 0.85, 0.95)
ANGLES = (0.0, 0.0, 0.7, 2.1)


def make(dilations=(1, 1, 1, 1), dtype=torch.float64, grad=False, **options) -> Kernels:
    rate = torch.tensor(RATES, dtype=dtype, requires_grad=grad)
    angle = torch.tensor(ANGLES, dtype=dtype, requires_grad=grad)
    return make_kernels(rate, angle, KINDS, dilations, **options)


def draw(*shape, dtype=torch.float64, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def close(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


class LargestTensor(TorchDispatchMode):
    """How many elements the largest tensor has that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // 4)
        return output
