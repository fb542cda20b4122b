"""What README.md and docs/*.md tell a reader to type is typed: shortened, otherwise as it stands.

A new block or command on a page is run without a change here. What cannot be run here is in NOT_RUN,
with the reason; its verb and flags are checked all the same.
"""

import contextlib
import functools
import io
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from holdover.bundled import bundled_model
from holdover.carries import kinds, registry
from holdover.cli import entry as cli
from holdover.forecasting.models.registry import FORECASTERS
from holdover.runs.models import open_model
from holdover.tokenization.encoders import open_encoder
from page_files import write_files
from page_results import OF_COMMANDS, OF_PYTHON
from pages import PAGES, blocks, commands, mentions
from scripts import ROOT

# Words of a page's commands that are replaced: models and texts from the hub by those of the package.
REPLACED = {
    "README.md": {"gpt2": "books-plain", "wikitext-103": "time-machine"},
    "docs/generation.md": {"DIR": "books-recurrent"},
}
# The shape of every Informer.
TINY = "d_model=16,n_heads=8,d_ff=16"
# Words added to a verb's commands to make them short. A flag that is given twice has its last value.
SHORTER = {
    "train": "--rows 1 --windows 2 --max-steps 2 --validation-tokens 200",
    "eval": "--document-tokens 400 --diagnose-windows 2 --timed-windows 2 --draws 100",
    "generate": "--max-new-tokens 5",
    "forecast train": "epochs=1 rows=64",
    "qa train": "epochs=1",
}
SMALL = 'model="gpt2", from_scratch=True, tokenizer="bytes", shape={"n_layer": 2, "n_embd": 24}'
# Parts of a page's Python and YAML that are replaced, for the same reasons.
CHANGED = {
    "README.md": {'"gpt2"': '"stock-model"', '" * 200': '" * 60'},
    "docs/experiments.md": {
        'model="books-plain"': SMALL,
        "max_steps=30": "max_steps=1, validation_tokens=200",
        'run, data="time-machine"': 'run, data="time-machine", document_tokens=200',
        '"window": 300': '"window": 24',
    },
    "docs/extending.md": {'"gpt2"': '"stock-model"'},
    "docs/forecasting.md": {"epochs=3": "epochs=1"},
    "docs/generation.md": {"max_new_tokens=5000": "max_new_tokens=5", "write(200": "write(5"},
    "docs/qa.md": {"epochs=2": "epochs=1"},
    "docs/training.md": {
        "epochs: 3": "max_steps: 2",
        "max_steps=20": "max_steps=3",
        "document_tokens=2000": "document_tokens=500",
    },
}
# Beginnings of commands that are not run, and why.
NOT_RUN = {
    "holdover run experiments/overlap.py --scale small": "takes minutes; smoke goes the same way",
    "holdover run experiments/overlap.py --scale real": "needs the packages of real-weights",
    "holdover run experiments/overlap.py --scale paper": "needs the hub and a GPU",
    "holdover train --config run.yaml --processes 8": "needs eight GPUs",
    "torchrun --nnodes 2": "needs two machines",
    "accelerate launch --multi_gpu --num_machines 2": "needs two machines",
    "make": "the target's own job",
    "pip": "needs an index of packages",
}
# Beginnings of commands that take long. `make nightly` runs them.
SLOW = (
    "holdover run experiments/overlap.py --scale smoke",
    "holdover train --config run.yaml --device cpu --processes",
    "torchrun --standalone",
    "accelerate launch --multi_gpu --num_processes",
    "accelerate launch --use_fsdp",
)
# Beginnings of commands that are refused here, with exit code 2 and a sentence that says this.
REFUSED = {
    "holdover submit": "sbatch",
    "holdover plan --model llama --hardware h100": "GiB too much",
}
# Blocks that show a drawing, a tree or an output, by their first word.
SHOWN = {
    "README.md": ["src/holdover/"],
    "docs/design.md": ["model(input_ids,", "source"],
    "docs/scaling.md": ["holdover:"],
    "docs/training.md": ["runs/train/"],
}
# Folders of the repository that a page's commands read.
READ = {
    "docs/experiments.md": ["experiments", "results/experiments/overlap"],
    "docs/scaling.md": ["results/speed", "results/training", "results/scaling"],
    "docs/slurm.md": ["experiments"],
}
# Blocks that a reader saves as a file.
SAVED = {"yaml": "run.yaml", "json": "shown.json"}
GROUPS = ("forecast", "qa", "session")
SLURM = ("sbatch", "squeue", "sacct", "scontrol", "scancel")
WITH_COMMANDS = [page for page in PAGES if commands(page)]
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files that the pages name, where SLURM is not installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    which = shutil.which
    monkeypatch.setattr(
        shutil, "which", lambda name, *a: None if name in SLURM else which(name, *a)
    )
    write_files(tmp_path)
    return tmp_path


def changed(page: str, text: str) -> str:
    for old, new in CHANGED.get(page, {}).items():
        text = text.replace(old, new)
    return text


def copy_folders(page: str, place: Path) -> None:
    for folder in READ.get(page, ()):
        shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))


def save_blocks(page: str, folder: Path) -> None:
    for kind, name in SAVED.items():
        for block in blocks(page, kind):
            (folder / name).write_text(changed(page, block.text))


def verb_of(words: list[str]) -> str:
    return " ".join(words[1:3] if words[1] in GROUPS else words[1:2])


def starts(words: list[str], beginnings) -> str | None:
    """The beginning that the command has, if any."""
    line = " ".join(words)
    return next((one for one in beginnings if f"{line} ".startswith(f"{one} ")), None)


def shortened(page: str, words: list[str]) -> list[str]:
    """The arguments of a command of holdover that is run here."""
    replaced = REPLACED.get(page, {})
    words = [replaced.get(word, word) for word in words]
    added = SHORTER.get(verb_of(words), "").split()
    if verb_of(words) == "forecast train" and "informer" in words:
        own = [word for word in words if word.startswith("shape=")]
        words = [word for word in words if word not in own]
        added.append(",".join([f"shape={TINY}", *(word.removeprefix("shape=") for word in own)]))
    return [*words[1:], *added]


def run(page: str, words: list[str], capsys) -> str:
    """Run a command that must succeed, or be refused as REFUSED says; returns what it prints."""
    arguments = shortened(page, words)
    code = cli.main(arguments)
    printed = capsys.readouterr()
    said = f"{page}: holdover {' '.join(arguments)}\n{printed.err[-2000:]}"
    refused = starts(words, REFUSED)
    if refused:
        assert code == 2 and REFUSED[refused] in printed.err, said
    else:
        assert code == 0, said
    return printed.out


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_commands_run(page, place, capsys):
    copy_folders(page, place)
    save_blocks(page if blocks(page, "yaml") else "docs/training.md", place)
    printed = {}
    for words in commands(page):
        if starts(words, NOT_RUN) or starts(words, SLOW):
            continue
        assert words[0] == "holdover", f"{page}: say how to run {words}"
        printed[" ".join(words)] = run(page, words, capsys)
    if page in OF_COMMANDS:
        OF_COMMANDS[page](place, list(printed.values()))


def launched(words: list[str]) -> list[str]:
    """A command in a process of its own, by this Python."""
    modules = {
        "torchrun": "torch.distributed.run",
        "accelerate": "accelerate.commands.accelerate_cli",
        "holdover": "holdover",
    }
    return [sys.executable, "-m", modules[words[0]], *words[1:]]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("page", "words"),
    [
        pytest.param(page, words, id=f"{page}-{' '.join(words)[:70]}")
        for page in WITH_COMMANDS
        for words in commands(page)
        if starts(words, SLOW)
    ],
)
def test_slow_commands_run(page, words, place):
    copy_folders(page, place)
    save_blocks("docs/training.md", place)
    more = SHORTER["train"].replace("--rows 1", "--rows 2").split() if "train" in words else []
    done = subprocess.run([*launched(words), *more], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]


def python_names(page: str) -> dict:
    """What a page's Python takes for granted."""
    if page != "docs/generation.md":
        return {}
    model = open_model("books-recurrent")
    tokenizer = open_encoder(bundled_model("books-recurrent"))
    ids = torch.tensor([[1, 2, 3]])
    text = Path("book.txt").read_text()
    return {"model": model, "tokenizer": tokenizer, "text": text, "prompt_ids": ids}


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_runs(page, place, capsys, monkeypatch):
    # What a page registers is gone afterwards.
    for table in (registry.CARRIES, kinds.KIND_SETTINGS):
        for name in ("last_states",):
            monkeypatch.setitem(table, name, None)
            monkeypatch.delitem(table, name)
    save_blocks(page, place)
    names = python_names(page)
    for block in blocks(page, "python"):
        # As many empty lines as stand before it, so that a traceback names the page's line.
        text = "\n" * block.line + changed(page, block.text)
        exec(compile(text, page, "exec"), names)
        if "EXPERIMENT" in names:
            (place / "mine.py").write_text(changed(page, block.text))
    if page in OF_PYTHON:
        OF_PYTHON[page](place, capsys.readouterr().out.splitlines())


def test_blocks_are_run_or_shown():
    """Every block is of a kind that is run, or is listed as a drawing or an output."""
    for page in PAGES:
        kinds = {block.kind for block in blocks(page)}
        assert kinds <= {"python", "commands", "text", "toml", *SAVED}, f"{page}: {kinds}"
        for block in blocks(page, "toml"):
            tomllib.loads(block.text)
        first = [block.text.split()[0] for block in blocks(page, "text")]
        assert first == SHOWN.get(page, []), page


def test_replacements_are_needed():
    """What the tables above name stands on the pages."""
    lines = [" ".join(words) for page in PAGES for words in commands(page)]
    for beginning in (*NOT_RUN, *SLOW):
        assert any(line.startswith(beginning) for line in lines), beginning
    for page, replaced in REPLACED.items():
        words = {word for words in commands(page) for word in words}
        assert words >= set(replaced), page
    for page, parts in CHANGED.items():
        text = "".join(block.text for block in blocks(page))
        for part in parts:
            assert part in text, (page, part)


@functools.cache
def help_of(verb: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as end:
        cli.main([*verb.split(), "--help"])
    assert end.value.code == 0, f"holdover {verb} does not exist"
    return printed.getvalue()


def check_words(words: list[str]) -> None:
    """A command's verb, flags, target, extra or file exists."""
    program, *rest = words
    if program == "make":
        makefile = (ROOT / "Makefile").read_text()
        assert all(f"\n{target}:" in makefile for target in rest if "=" not in target), words
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        for extra in re.findall(r"holdover\[(\w+)\]", " ".join(rest)):
            assert extra in project["optional-dependencies"], words
    elif program == "python" and rest[0] == "-m":
        assert find_spec(rest[1]) is not None, words
    elif program == "python":
        assert (ROOT / rest[0]).is_file(), words
    elif "-m" in rest:
        module = rest.index("-m")
        assert rest[module + 1] == "holdover", words
        check_words(rest[module + 1 :])
    elif program == "holdover" and not rest[0].startswith("-"):
        if rest[0] == "submit" and "--" in rest:
            place = rest.index("--")
            check_words(["holdover", *rest[place + 1 :]])
            rest = rest[:place]
        known = set(re.findall(r"--[\w.-]+", help_of(verb_of([program, *rest]))))
        flags = {word.partition("=")[0] for word in rest if word.startswith("--")}
        # Settings below a setting, as in --recurrence.slots, are not in the help.
        flags = {flag.partition(".")[0] for flag in flags}
        assert flags <= known, f"{words}: {flags - known}"


@pytest.mark.parametrize("page", PAGES)
def test_verbs_and_flags_exist(page):
    for words in [*commands(page), *mentions(page)]:
        check_words(words)


def test_the_table_of_forecasters():
    guide = (ROOT / "docs" / "forecasting.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", guide, re.M)) == set(FORECASTERS)
