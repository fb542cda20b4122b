"""Builds the wheel, installs it into a clean environment and runs a small command of every verb.

`make wheel-test` runs it, after the tests. It needs an index of packages (about 90 seconds).
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
PACKAGE = ROOT / "src" / "holdover"
LONGEST_INSTALL = 120
# Extras without which some verb does not run.
EXTRAS = ("forecast",)

SMALL = "--data book.txt --window 64 --windows 2 --rows 1 --max-steps 2 --validation-tokens 200"
SCORE = "--data book.txt --document-tokens 200 --diagnose-windows 2 --timed-windows 2 --draws 100"
# Command, exit code, what it prints. They run in this order, in one folder.
COMMANDS = [
    ("--version", 0, "holdover "),
    ("backbones", 0, "llama"),
    (f"train --model books-plain {SMALL} --output runs/recurrent", 0, ""),
    (f"train --model books-plain {SMALL} --recurrence none --output runs/plain", 0, ""),
    (f"eval --model runs/recurrent {SCORE} --output runs/recurrent-eval", 0, "scored"),
    (f"eval --model runs/plain {SCORE} --output runs/plain-eval", 0, "scored"),
    ("compare runs/plain-eval runs/recurrent-eval", 0, "plain at overlap 0"),
    ("plot runs/recurrent runs/plain runs/recurrent-eval runs/plain-eval", 0, ""),
    ("generate --model books-recurrent --prompt Time --max-new-tokens 5", 0, ""),
    ("read book.txt --session book.hold --model books-recurrent", 0, "book.hold"),
    ("session info book.hold", 0, "book.txt"),
    ("generate --session book.hold --max-new-tokens 5", 0, ""),
    ("lens book.txt --model books-recurrent -o lens.html", 0, "lens.html"),
    (
        "forecast train --data power.csv --past 24 --ahead 6 --model dlinear --output runs/dlinear"
        " epochs=1",
        0,
        "",
    ),
    ("forecast eval --model runs/dlinear --output runs/dlinear-eval", 0, "dlinear"),
    ("forecast predict --model runs/dlinear --data power.csv --output runs/next.csv", 0, ""),
    ("forecast plot runs/dlinear-eval runs/dlinear --output runs/plots", 0, ""),
    ("qa train --model my-encoder --data questions.json --output runs/qa epochs=1", 0, ""),
    ("qa eval --model runs/qa --output runs/qa-eval", 0, "F1"),
    ("qa ask --model runs/qa --question what --context long-text.txt", 0, "window"),
    ("run mine.py --scale smoke --device cpu --results results", 0, ""),
    ("report --results results --output report.html --scales smoke", 0, "report.html"),
    ("plan --model gpt2 --hardware h200 --window 300 --windows 20 --tokens 1e9", 0, "GPU"),
    ("jobs", 0, "No jobs were submitted"),
    ("submit --slurm partition=gpu -- train --model books-plain", 2, "submitit"),
    ("demo --novel-tokens 1000 --new-tokens 5 --max-steps 1 --output runs/demo", 0, "demo"),
]
WRITTEN = [
    "runs/recurrent/best/model.safetensors",
    "runs/recurrent-eval/eval.json",
    "runs/plots/training.png",
    "lens.html",
    "runs/next.csv",
    "runs/qa-eval/qa_eval.json",
    "report.html",
    "runs/demo/demo.html",
]
EXPERIMENT = """
from holdover.experiments import Experiment, Layout, Run, Table, Value, of_evaluation


def measure(work):
    run = work.train(
        model="books-plain", data="book.txt", recurrence={"carry": "none", "window": 64},
        windows=2, rows=1, max_steps=1, validation_tokens=200,
    )
    return of_evaluation(work.evaluate(run, data="book.txt", document_tokens=200, draws=100))


def layout(scale):
    rows = [["plain", Value("perplexity_per_word", "plain")]]
    return Layout(claims=[], tables=[Table("Perplexity", ["arm", "a word"], rows)])


EXPERIMENT = Experiment(
    title="Mine", question="How well does it read?", source="mine", layout=layout,
    runs=lambda scale, seeds: [Run("plain", measure, {}, seed) for seed in seeds],
    seeds={"smoke": (0,)},
)
"""
# Runs in the clean environment. Each command is a fork, so that it imports what it needs of holdover
# itself; the packages below take seconds to import and are imported once.
DRIVER = """
import json, os, sys
import matplotlib, scipy, torch, transformers, accelerate
from importlib.metadata import entry_points
torch.set_num_threads(1)
(script,) = [one for one in entry_points(group="console_scripts") if one.name == "holdover"]
for number, words in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if not child:
        file = os.open(f"{number}.out", os.O_WRONLY | os.O_CREAT)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.argv = ["holdover", *words]
        code = 1
        try:
            code = script.load()()
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)
    _, status, used = os.wait4(child, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime]), flush=True)
"""


def build(folder: Path) -> Path:
    """The wheel of a copy, because setuptools packs what an earlier build left in build/."""
    copy = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    call = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        folder,
        copy,
    ]
    subprocess.run(call, check=True)
    (wheel,) = folder.glob("holdover-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("holdover/")}
    files = {
        str(path.relative_to(copy / "src"))
        for path in (copy / "src" / "holdover").rglob("*")
        if path.is_file()
    }
    assert packed == files, f"packed and not in the source, or not packed: {packed ^ files}"
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, {len(packed)} files")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """A clean environment with the wheel; returns its Python."""
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for name in EXTRAS if name in project["optional-dependencies"]]
    asked = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    constraints = ["--constraint", ROOT / "constraints.txt"]
    call = [python, "-m", "pip", "install", "--quiet", "--no-compile", *constraints, asked]
    subprocess.run(call, check=True)
    seconds = time.monotonic() - start
    freeze = [python, "-m", "pip", "freeze"]
    packages = subprocess.run(freeze, capture_output=True, text=True, check=True).stdout.split("\n")
    print(f"installed in {seconds:.0f} s, {len(packages)} packages")
    cuda = [line for line in packages if re.match(r"nvidia|cuda|triton", line)]
    assert not cuda, f"the CPU build of torch needs none of {cuda}"
    if seconds > LONGEST_INSTALL:
        print(f"The installation took more than {LONGEST_INSTALL} s.", file=sys.stderr)
    return python


def write_inputs(folder: Path) -> None:
    """With the packages of this environment, not of the clean one."""
    sys.path.insert(0, str(TESTS / "support"))
    from page_files import write_files

    write_files(folder)
    (folder / "mine.py").write_text(EXPERIMENT)


def verbs(python: Path, environment: dict[str, str], folder: Path) -> set[str]:
    """Every verb that the command's help names, with those below forecast, qa and session."""
    script = python.with_name("holdover")

    def named(*words: str) -> list[str]:
        call = [script, *words, "--help"]
        done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return re.findall(r"^    (\w+)(?: |$)", done.stdout, re.M)

    groups = ("forecast", "qa", "session")
    return {name for name in named() if name not in groups} | {
        f"{group} {name}" for group in groups for name in named(group)
    }


def run(python: Path, folder: Path) -> None:
    hidden = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment |= {
        "HOLDOVER_CACHE": str(folder / "cache"),
        "PATH": f"{python.parent}:/usr/bin:/bin",
    }
    for verb in verbs(python, environment, folder):
        assert any(f"{words} ".startswith(f"{verb} ") for words, *_ in COMMANDS), (
            f"holdover {verb} has no command here: add one"
        )
    call = [python, "-c", DRIVER]
    words = json.dumps([command.split() for command, *_ in COMMANDS])
    done = subprocess.run(
        call, input=words, cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    failures = []
    for number, line in enumerate(done.stdout.splitlines()):
        command, expected, fragment = COMMANDS[number]
        (code, seconds), output = json.loads(line), (folder / f"{number}.out").read_text()
        print(f"{seconds:5.1f} CPU seconds  holdover {command}")
        if code != expected or fragment not in output:
            failures.append(f"holdover {command}: exit code {code}\n{output[-3000:]}")
    failures += [f"{name} was not written" for name in WRITTEN if not (folder / name).exists()]
    assert not failures, "\n\n".join(failures)


def main() -> int:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdover-wheel-") as name:
        folder = Path(name)
        work = folder / "work"
        work.mkdir()
        write_inputs(work)
        python = install(build(folder), folder / "environment")
        run(python, work)
    print(f"The wheel runs every verb ({time.monotonic() - start:.0f} s).")
    return 0


if __name__ == "__main__":
    sys.exit(main())
