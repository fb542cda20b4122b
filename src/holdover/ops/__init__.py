"""Scans, recurrence matrices and relative attention: functions of tensors, without a model.

Kernels of our own run on NVIDIA GPUs, unless HOLDOVER_KERNELS=0. Tests compare them with the formulas in
triton's interpreter, and benchmarks compare outputs and gradients on an H200 (torch 2.11, triton 3.6)
before they measure.
"""

import os
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None
DEVICES: tuple[str, ...] = () if os.environ.get("HOLDOVER_KERNELS") == "0" else ("cuda",)
# The oldest compute capability with bfloat16 products.
CAPABILITY = (8, 0)


# The answer is a constant for torch.compile, which therefore does not trace this function.
@torch.compiler.assume_constant_result
def is_capable(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    # AMD devices call themselves cuda too; the kernels were never run there.
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
