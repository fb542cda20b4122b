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
# Tests whose first case was collected.
sampled: set[str] = set()
# Importing makes millions of objects and no garbage. The collector would take a quarter of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Keep everything that was imported out of garbage collection.

    Otherwise each collection takes a quarter of a second.
    """
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave a sample of the cases of a test that is marked `sampled(N)`; the others are nightly.

    About one case in N stays, chosen by its name, and always the first.
    """
    marker = item.get_closest_marker("sampled")
    if marker is None:
        return
    test = item.nodeid.partition("[")[0]
    first = test not in sampled
    sampled.add(test)
    if not first and zlib.crc32(item.nodeid.encode()) % marker.args[0]:
        item.add_marker(pytest.mark.nightly)
