"""What a forward pass costs: by the formula, by counting, and in memory.

* The formula is Kaplan et al.'s forward count without embedding and head, times the part of each
  window that is read again: [2 N + 2 L T d] T / (T - o) with N = 12 L d^2. Recurrence counts as zero.
* The published table only comes out if 2 N + 2 L T d is rounded to three digits before it is scaled.
* torch's counter knows its attention kernels of GPUs but not the fused one of the CPU (2.13), nor ours:
  without the formulas here, attention would count as nothing there. Those of GPUs it refuses (2.11)
  where several heads of queries share one of keys. Scans of a recurrence, which are
  linear in the length, do.
* Resident memory is sampled, so a peak shorter than the interval can be missed; CUDA's is exact, and
  beside it stands what the process held of the machine's own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from torch.utils.flop_counter import FlopCounterMode

from ..ops.relative_softmax import relative_attention

SAMPLING_SECONDS = 0.1
ATTENTION_KERNELS = tuple(
    f"_scaled_dot_product_{kind}_attention{where}"
    for kind, where in (("flash", ""), ("efficient", ""), ("cudnn", ""), ("flash", "_for_cpu"))
)
# Those that are measuring now, the outermost first.
_open: list["PeakMemory"] = []


def flops_per_token(layers: int, width: int, window: int, overlap: int) -> float:
    """Forward FLOPs for each token scored, with windows that repeat `overlap` tokens."""
    return _base(layers, width, window, overlap) * window / (window - overlap)


def printed_flops(layers: int, width: int, window: int, overlap: int) -> float:
    """The same, rounded to three digits before and after scaling, as in the published table."""
    base = _three_digits(_base(layers, width, window, overlap))
    return _three_digits(base * window / (window - overlap))


def counted_flops(run: Callable[[], Any]) -> int:
    """FLOPs of the matrix products and convolutions that `run` executes, backward included."""
    aten = torch.ops.aten
    unknown: dict[Any, Callable[..., int]] = {_packet_of(relative_attention): _attention_flops}
    for kernel in ATTENTION_KERNELS:
        unknown[getattr(aten, kernel)] = _attention_flops
        unknown[getattr(aten, f"{kernel}_backward")] = _attention_backward_flops
    with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
        run()
    return counter.get_total_flops()


class PeakMemory:
    """Context manager; afterwards `result` holds the most memory in use inside, and of which kind:
    the GPU's, unless the work is done on another device. One may be inside another."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.result: dict[str, Any] = {}
        self._on_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
        self._process = psutil.Process()
        self._left = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._most = 0  # of the GPU, before one inside this one forgot it
        self._resident = 0

    def __enter__(self) -> "PeakMemory":
        if self._on_gpu:
            torch.cuda.synchronize()
            _note_peaks()
            _open.append(self)
            torch.cuda.reset_peak_memory_stats()
        self._look()
        self._sampler.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._left.set()
        self._sampler.join()
        self._look()
        self.result = {"bytes": self._resident, "kind": "process resident"}
        if self._on_gpu:
            torch.cuda.synchronize()
            _open.remove(self)
            most = max(self._most, torch.cuda.max_memory_allocated())
            self.result = {"bytes": most, "kind": "GPU allocated", "resident": self._resident}

    def _sample(self) -> None:
        while not self._left.wait(SAMPLING_SECONDS):
            self._look()

    def _look(self) -> None:
        self._resident = max(self._resident, self._process.memory_info().rss)


def _note_peaks() -> None:
    """The peak is the device's: those that are measuring note theirs before it is forgotten."""
    for around in _open:
        around._most = max(around._most, torch.cuda.max_memory_allocated())


@contextmanager
def uncounted_memory() -> Iterator[None]:
    """What a GPU holds inside counts as nobody's peak, and is given back to whoever shares the GPU."""
    if not torch.cuda.is_available():
        yield
        return
    torch.cuda.synchronize()
    _note_peaks()
    try:
        yield
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _base(layers: int, width: int, window: int, overlap: int) -> int:
    if min(layers, width, window) < 1 or not 0 <= overlap < window:
        raise ValueError(
            f"FLOPs were asked for {layers} layers of width {width} and windows of {window} tokens "
            f"overlapping by {overlap}: give positive sizes and an overlap below the window."
        )
    parameters = 12 * layers * width**2
    return 2 * parameters + 2 * layers * window * width


def _three_digits(number: float) -> float:
    return float(f"{number:.2e}")


def _packet_of(operation: Any) -> Any:
    """What the counter knows an operation of ours by."""
    return operation._opoverload.overloadpacket


def _attention_flops(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: Any, **__: Any
) -> int:
    """Scores and their product with the values; masked places are computed and so counted."""
    return 2 * _places(query, key) * (query[-1] + value[-1])


def _attention_backward_flops(
    gradient: tuple[int, ...],
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    *_: Any,
    **__: Any,
) -> int:
    """Scores again, then gradients of weights, values, queries and keys, as torch counts on GPUs."""
    return 2 * _places(query, key) * (3 * query[-1] + 2 * value[-1])


def _places(query: tuple[int, ...], key: tuple[int, ...]) -> int:
    rows, heads, length, _ = query
    return rows * heads * length * key[-2]
