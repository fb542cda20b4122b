"""Makes the tests' own modules importable and keeps torch from using more cores than there are."""

import gc
import os
import sys
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Also of the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS / "support"))
# Some tests share cases with another room's.
sys.path += [str(room) for room in sorted(TESTS.iterdir()) if room.is_dir()]

import torch  # noqa: E402 - after the environment is set

torch.set_num_threads(1)
# Importing makes millions of objects and no garbage: looking for it takes a quarter of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """What importing has made stays to the end: no collection of garbage need look through it.

    It took a quarter of a second each time that a test or a run collects.
    """
    gc.freeze()
    gc.enable()
