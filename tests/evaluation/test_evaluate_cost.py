"""FLOPs by formula and by counting, and peak memory."""

import mmap
import time

import psutil
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdover.evaluation.cost import (
    SAMPLING_SECONDS,
    PeakMemory,
    counted_flops,
    flops_per_token,
    printed_flops,
    uncounted_memory,
)
from holdover.ops.relative_softmax import relative_attention

GPT2 = {"layers": 12, "width": 768, "window": 300}
OVERLAPS = (0, 5, 10, 30, 50, 75, 100, 150, 200)


def test_the_published_table_to_the_last_digit():
    printed = [printed_flops(**GPT2, overlap=overlap) / 1e8 for overlap in OVERLAPS]
    assert printed == pytest.approx([1.75, 1.78, 1.81, 1.94, 2.10, 2.33, 2.62, 3.50, 5.25])


def test_the_exact_count_differs_by_its_rounding():
    assert flops_per_token(**GPT2, overlap=0) == 175_398_912
    assert flops_per_token(**GPT2, overlap=150) == 2 * 175_398_912
    same = [
        f"{flops_per_token(**GPT2, overlap=o):.2e}" == f"{printed_flops(**GPT2, overlap=o):.2e}"
        for o in OVERLAPS
    ]
    assert sum(same) == 4


@pytest.mark.parametrize(("window", "overlap"), [(300, 300), (300, -1), (0, 0)])
def test_overlap_must_leave_something_to_score(window, overlap):
    with pytest.raises(ValueError, match="overlap below the window"):
        flops_per_token(12, 768, window, overlap)


# [2 rows, 3 heads, 5 queries or 7 keys, width 4, values 4]: scores, then weights times values.
SCORES = 2 * (2 * 3 * 5 * 7) * 4
ATTENTION = 2 * SCORES


def test_our_own_attention_is_counted():
    query, key, value = (torch.empty(2, 3, n, 4, device="meta") for n in (5, 7, 7))
    product = torch.empty(3, 2, 5, 8, device="meta")
    counted = counted_flops(lambda: relative_attention(query, key, value, product, None, 7))
    assert counted == ATTENTION


def attention_inputs():
    return torch.randn(2, 3, 5, 4), *torch.randn(2, 2, 3, 7, 4)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
def test_product_and_attention_by_hand(kernel, masked):
    query, key, value = attention_inputs()
    mask = torch.ones(5, 7, dtype=torch.bool).tril() if masked else None
    weight = torch.randn(4, 11)

    def run():
        with torch.no_grad(), sdpa_kernel(kernel):
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask) @ weight

    product = 2 * (2 * 3 * 5) * 4 * 11
    assert counted_flops(run) == ATTENTION + product


def test_backward_counts_the_scores_it_recomputes():
    inputs = [tensor.requires_grad_() for tensor in attention_inputs()]

    def run():
        F.scaled_dot_product_attention(*inputs).sum().backward()

    assert counted_flops(run) == ATTENTION + 5 * SCORES


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_heads_of_queries_may_share_keys_in_a_gpu_kernel(kind):
    """Llama's do, and torch 2.11 counts none of these."""
    query = torch.zeros(2, 6, 16, 8, device="meta", dtype=torch.bfloat16)
    shared = torch.zeros(2, 2, 16, 8, device="meta", dtype=torch.bfloat16)
    kernel = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention")
    more = {"flash": (), "efficient": (None, True), "cudnn": (None, True)}[kind]
    assert counted_flops(lambda: kernel(query, shared, shared, *more)) == 2 * 2 * 6 * 16 * 16 * 16


def test_peak_memory_sees_what_was_freed_again(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    size = 64 * 2**20
    with PeakMemory() as peak:
        # The system's own memory: an allocator may keep what is freed, or have as much left over.
        block = mmap.mmap(-1, size)
        for page in range(0, size, mmap.PAGESIZE):
            block[page] = 1
        time.sleep(10 * SAMPLING_SECONDS)
        block.close()
    assert peak.result["kind"] == "process resident"
    assert peak.result["bytes"] > psutil.Process().memory_info().rss + 0.8 * size


def test_peak_memory_stops_looking_also_after_an_error():
    peak = PeakMemory()
    with pytest.raises(RuntimeError), peak:
        raise RuntimeError
    assert not peak._sampler.is_alive() and peak.result["bytes"] >= 0


def test_peak_memory_on_a_gpu(monkeypatch):
    """The calls that are made there, in order."""
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 123)
    with PeakMemory() as peak:
        calls.append("run")
    assert peak.result.pop("resident") > 0
    assert peak.result == {"bytes": 123, "kind": "GPU allocated"}
    assert calls == ["synchronize", "reset_peak_memory_stats", "run", "synchronize"]


@pytest.fixture
def use(monkeypatch):
    """Uses so many bytes of a GPU for a moment; there is one counter, and who likes sets it back."""
    most = 0

    def forget():
        nonlocal most
        most = 0

    def use(size):
        nonlocal most
        most = max(most, size)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", forget)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: most)
    return use


def test_peak_memory_inside_another_forgets_nothing(use):
    with PeakMemory() as outer:
        use(500)
        with PeakMemory() as inner:
            use(100)
        use(200)
    with PeakMemory() as later:
        use(50)
    assert [peak.result["bytes"] for peak in (outer, inner, later)] == [500, 100, 50]


@pytest.mark.parametrize(("before", "after", "most"), [(100, 50, 100), (50, 100, 100)])
def test_a_peak_does_not_count_what_was_to_be_left_out(use, before, after, most):
    with PeakMemory() as outer, PeakMemory() as inner:
        use(before)
        with uncounted_memory():
            use(500)
        use(after)
    assert outer.result["bytes"] == inner.result["bytes"] == most
