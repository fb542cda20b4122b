"""GPUs that runs are planned for: numbers of their makers, and what cannot be looked up.

* Peaks are of dense bfloat16 products (data sheets often print twice that, for sparse ones).
* Links are bytes a second in one direction, of one GPU: NVLink inside a node (data sheets add both
  directions), and one network card a GPU between nodes, as the makers' own machines have it.
"""

from dataclasses import dataclass

GIGA = 10**9
TERA = 10**12


@dataclass(frozen=True)
class Hardware:
    name: str
    peak: float  # FLOPs a second in bfloat16
    single: float  # FLOPs a second in float32
    memory: float  # bytes
    memory_speed: float  # bytes a second
    inside: float  # bytes a second between GPUs of a node
    between: float  # bytes a second and GPU between nodes
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
# Of a GPU's memory, what tensors can have: the rest is CUDA's own and what lies between them. Assumed.
USABLE = 0.92
# GPU hours between two failures: 419 unexpected interruptions in 54 days of 16,384 H100s (The Llama 3
# Herd of Models, 2024).
HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419


def hardware_named(name: str) -> Hardware:
    if name not in HARDWARE:
        raise ValueError(
            f"hardware={name!r} is not in the table: choose from {', '.join(HARDWARE)}."
        )
    return HARDWARE[name]
