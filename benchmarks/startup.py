"""Seconds until the command line answers, and until `import holdover` is done.

    python benchmarks/startup.py --output results/startup

Each time is the median of several fresh processes; the files they read are in the file cache. CPU
seconds are those of the process alone, which other work on the machine disturbs less.
The import of holdover's main function and classes is compared with the imports of torch and
transformers that it needs.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdover.cli.entry import GROUPS, VERBS
from holdover.runs.provenance import provenance, write_record

IMPORTS = {
    "torch, transformers": "import torch; from transformers import AutoModelForCausalLM, "
    "GenerationMixin, PreTrainedModel",
    "holdover, names only": "import holdover",
    "holdover.add_recurrence": "import holdover; holdover.add_recurrence",
}
# Writes a small session.
SESSION = """
import sys, torch, holdover
from transformers import GPT2Config, GPT2LMHeadModel
from holdover.tokenization.encoders import ByteEncoder
config = GPT2Config(vocab_size=256, n_layer=2, n_embd=32, n_head=2, n_positions=64,
                    bos_token_id=0, eos_token_id=0)
model = holdover.add_recurrence(
    GPT2LMHeadModel(config), holdover.RecurrenceConfig(window=32, overlap=8)
).eval()
session = holdover.Session(model, ByteEncoder())
session.read("A short text, so that there is a state. " * 8)
session.save(sys.argv[1])
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        session = Path(folder, "session")
        subprocess.run([sys.executable, "-c", SESSION, session], check=True)
        commands = {
            "--version": ["--version"],
            "--help": ["--help"],
            **{f"{group} --help": [group, "--help"] for group in GROUPS},
            **{f"{verb.name} --help": [*verb.name.split(), "--help"] for verb in VERBS},
            "a mistyped verb": ["trian"],
            "a mistyped flag": ["train", "--lerning-rate", "1"],
            "session info": ["session", "info", str(session)],
            "jobs": ["jobs", "--jobs", folder],
        }
        holdover = [sys.executable, "-m", "holdover"]
        seconds = {
            name: median_seconds([*holdover, *words], options.repeats)
            for name, words in commands.items()
        }
        imports = {
            name: median_seconds([sys.executable, "-c", code], options.repeats)
            for name, code in IMPORTS.items()
        }
    record = {
        "benchmark": "startup",
        "repeats": options.repeats,
        "commands": seconds,
        "imports": imports,
        "provenance": provenance(),
    }
    write_record(options.output / "startup.json", record)
    for name, value in {**seconds, **{f"import {k}": v for k, v in imports.items()}}.items():
        print(f"{value['seconds']:7.3f} s  {value['cpu_seconds']:7.3f} CPU s  {name}")


def median_seconds(call: list[str], repeats: int) -> dict[str, float]:
    # The first run fills the file cache and does not count.
    seconds, cpu_seconds = zip(*[seconds_of(call) for _ in range(repeats + 1)][1:], strict=True)
    return {"seconds": statistics.median(seconds), "cpu_seconds": statistics.median(cpu_seconds)}


def seconds_of(call: list[str]) -> tuple[float, float]:
    started, used = time.perf_counter(), children_cpu_seconds()
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        raise RuntimeError(f"{call} failed: {done.stderr}")
    return seconds, children_cpu_seconds() - used


def children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
