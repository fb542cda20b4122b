"""Where kernels of our own are used: nowhere unless HOLDOVER_KERNELS=1 asks for them.

They agree with the formulas in triton's interpreter and compile for compute capability 8.0 and 9.0, and
have not run on a GPU yet: until that is seen there, they are on request.
"""

import os
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None
DEVICES: tuple[str, ...] = ("cuda",) if os.environ.get("HOLDOVER_KERNELS") == "1" else ()
# From which generation of NVIDIA's on: earlier ones have no products of bfloat16.
CAPABILITY = (8, 0)


# A compiler asks once, and does not look how it is answered.
@torch.compiler.assume_constant_result
def is_capable(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    # Never tried on AMD's, which call themselves cuda too.
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= CAPABILITY
