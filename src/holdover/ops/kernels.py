"""Where kernels of our own are used: on NVIDIA's GPUs, unless HOLDOVER_KERNELS=0 says no.

They agree with the formulas in triton's interpreter, which tests run, and on an H200 (torch 2.11, triton
3.6), where a benchmark compares outputs and gradients before it measures.
"""

import os
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None
DEVICES: tuple[str, ...] = () if os.environ.get("HOLDOVER_KERNELS") == "0" else ("cuda",)
# From which generation of NVIDIA's on: earlier ones have no products of bfloat16.
CAPABILITY = (8, 0)


# A compiler asks once, and does not look how it is answered.
@torch.compiler.assume_constant_result
def is_capable(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    # Never tried on AMD's, which call themselves cuda too.
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
