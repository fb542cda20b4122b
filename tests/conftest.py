"""Sets up every test process: threads, signals and garbage collection."""

import gc
import os
import signal
import zlib

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Also for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

torch.set_num_threads(1)
# A shell starts background jobs with SIGINT ignored, and so would every process that a test starts.
# Tests that interrupt such a process need Python's own handling.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Markers and tests whose first case was collected.
sampled: set[tuple[str, str]] = set()
# Importing makes millions of objects and no garbage. The collector would take a quarter of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep everything that was imported out of garbage collection.

    Otherwise each collection takes a quarter of a second.
    """
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Share the cases of a test among `make quick`, `make test` and `make nightly`.

    sampled(N) leaves about one case in N in `make test` and makes the others nightly; quick_sampled(N)
    makes about one in N quick. Which ones depends on their names. The first is always among them.
    """
    for marker, added in (("sampled", pytest.mark.nightly), ("quick_sampled", pytest.mark.quick)):
        sampling = item.get_closest_marker(marker)
        if sampling is None:
            continue
        test = (marker, item.nodeid.partition("[")[0])
        chosen = test not in sampled or zlib.crc32(item.nodeid.encode()) % sampling.args[0] == 0
        sampled.add(test)
        if chosen == (marker == "quick_sampled"):
            item.add_marker(added)
