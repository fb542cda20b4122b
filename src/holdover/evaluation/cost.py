"""The cost of a forward pass: FLOPs by formula and by counting, time, and memory.

* The formula is Kaplan et al.'s forward count without embedding and head, scaled up because windows
  overlap: [2 N + 2 L T d] T / (T - o) with N = 12 L d^2. Recurrence counts as zero.
* To reproduce the published table, 2 N + 2 L T d must be rounded to three digits before scaling.
* torch's counter does not know the CPU's fused attention kernel (torch 2.13) or ours, and it
  refuses GPU kernels in which query heads share key heads (torch 2.11). The formulas here count all
  of them. Neither counts the scans of a recurrence, which are linear in the length.
* Resident memory is sampled, so a peak shorter than the interval can be missed. CUDA's peak is exact;
  its record also holds the process's resident memory.
"""

import threading
import time
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
# The PeakMemory objects that are active now, the outermost first.
_open: list["PeakMemory"] = []


def flops_per_token(layers: int, width: int, window: int, overlap: int) -> float:
    """Forward FLOPs per scored token, with windows that repeat `overlap` tokens."""
    return _base(layers, width, window, overlap) * window / (window - overlap)


def printed_flops(layers: int, width: int, window: int, overlap: int) -> float:
    """`flops_per_token`, rounded to three digits before and after scaling, as the table does."""
    base = _three_digits(_base(layers, width, window, overlap))
    return _three_digits(base * window / (window - overlap))


def counted_flops(run: Callable[[], Any]) -> int:
    """FLOPs of the matrix products and convolutions in a call of `run`, backward included."""
    aten = torch.ops.aten
    unknown: dict[Any, Callable[..., int]] = {_packet_of(relative_attention): _attention_flops}
    for kernel in ATTENTION_KERNELS:
        unknown[getattr(aten, kernel)] = _attention_flops
        unknown[getattr(aten, f"{kernel}_backward")] = _attention_backward_flops
    with FlopCounterMode(display=False, custom_mapping=unknown) as counter:
        run()
    return counter.get_total_flops()


class PeakMemory:
    """Context manager. Afterwards `result` holds the peak memory inside and its kind (the GPU's, unless
    the work runs on another device), and `seconds` the time inside. It can be nested."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.result: dict[str, Any] = {}
        self.seconds = 0.0
        self._on_gpu = torch.cuda.is_available() and (device is None or device.type == "cuda")
        self._process = psutil.Process()
        self._left = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)
        self._most = 0  # GPU peak before a nested PeakMemory reset the counter
        self._resident = 0

    def __enter__(self) -> "PeakMemory":
        if self._on_gpu:
            torch.cuda.synchronize()
            _note_peaks()
            _open.append(self)
            torch.cuda.reset_peak_memory_stats()
        self._look()
        self._sampler.start()
        self._started = time.perf_counter()
        return self

    def __exit__(self, *raised: object) -> None:
        self.seconds = time.perf_counter() - self._started
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
    """Save the device's peak in all active PeakMemory objects, before it is reset."""
    for around in _open:
        around._most = max(around._most, torch.cuda.max_memory_allocated())


@contextmanager
def uncounted_memory() -> Iterator[None]:
    """Context manager: no PeakMemory counts the GPU memory used inside; it is freed afterwards."""
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
    """The name under which torch's counter knows one of our operations."""
    return operation._opoverload.overloadpacket


def _attention_flops(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], *_: Any, **__: Any
) -> int:
    """Scores and their product with the values; masked positions are computed, so they count."""
    return 2 * _places(query, key) * (query[-1] + value[-1])


def _attention_backward_flops(
    gradient: tuple[int, ...],
    query: tuple[int, ...],
    key: tuple[int, ...],
    value: tuple[int, ...],
    *_: Any,
    **__: Any,
) -> int:
    """Scores again, then gradients of weights, values, queries and keys, as torch counts them."""
    return 2 * _places(query, key) * (3 * query[-1] + 2 * value[-1])


def _places(query: tuple[int, ...], key: tuple[int, ...]) -> int:
    rows, heads, length, _ = query
    return rows * heads * length * key[-2]
