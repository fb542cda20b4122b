"""The GPUs that a run can be planned for: numbers from data sheets, and a few assumptions.

* Peaks are for dense bfloat16 products (data sheets often print twice that, for sparse products).
* Links are bytes per second of one GPU in one direction: NVLink inside a node (data sheets add both
  directions), and one network card per GPU between nodes, as in the makers' own machines.
"""

from dataclasses import dataclass

GIGA = 10**9
TERA = 10**12


@dataclass(frozen=True)
class Hardware:
    name: str
    peak: float  # FLOPs per second in bfloat16
    single: float  # FLOPs per second in float32
    memory: float  # bytes
    memory_speed: float  # bytes per second
    inside: float  # bytes per second between GPUs of a node
    between: float  # bytes per second and GPU between nodes
    source: str


HARDWARE = {
    row.name: row
    for row in (
        Hardware(
            "a100",
            312 * TERA,
            19.5 * TERA,
            80 * GIGA,
            2.039 * TERA,
            300 * GIGA,
            25 * GIGA,
            "NVIDIA A100 80GB SXM data sheet; DGX A100: 8 x 200 Gb/s HDR InfiniBand",
        ),
        Hardware(
            "h100",
            989 * TERA,
            67 * TERA,
            80 * GIGA,
            3.35 * TERA,
            450 * GIGA,
            50 * GIGA,
            "NVIDIA H100 SXM data sheet; DGX H100: 8 x 400 Gb/s NDR InfiniBand",
        ),
        Hardware(
            "h200",
            989 * TERA,
            67 * TERA,
            141 * GIGA,
            4.8 * TERA,
            450 * GIGA,
            50 * GIGA,
            "NVIDIA H200 SXM data sheet; DGX H200: 8 x 400 Gb/s NDR InfiniBand",
        ),
        Hardware(
            "b200",
            2250 * TERA,
            80 * TERA,
            180 * GIGA,
            8.0 * TERA,
            900 * GIGA,
            50 * GIGA,
            "NVIDIA HGX B200 data sheet; DGX B200 user guide: 1,440 GB of 8 GPUs, 8 x 400 Gb/s",
        ),
    )
}
# Share of a GPU's memory that tensors can use; CUDA and fragmentation take the rest. Assumed.
USABLE = 0.92
# GPU hours between two failures: 419 unexpected interruptions in 54 days on 16,384 H100s (The Llama 3
# Herd of Models, 2024).
HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419


def hardware_named(name: str) -> Hardware:
    if name not in HARDWARE:
        raise ValueError(
            f"--hardware {name} is not in the table: choose from {', '.join(HARDWARE)}."
        )
    return HARDWARE[name]
