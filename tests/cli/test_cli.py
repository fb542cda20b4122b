"""The command line: what it prints, and how it ends."""

import subprocess
import sys

import pytest
import rich.console
from rich.console import Console

import holdover
from holdover import BACKBONES
from holdover.backbones.heads import head_classes
from holdover.cli import backbones
from holdover.cli import entry as cli
from refusals import refusal


def test_backbones_lists_every_architecture_and_class(capsys, monkeypatch):
    monkeypatch.setattr(rich.console, "Console", lambda: Console(width=400))
    assert cli.main(["backbones"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for model_type, row in BACKBONES.items():
        (line,) = [line for line in lines if model_type in line.split()]
        for name in head_classes(model_type, row).values():
            assert name in line


def test_version_from_the_module():
    call = [sys.executable, "-m", "holdover", "--version"]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert done.stdout == f"holdover {holdover.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["backbones", "--help"]])
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 0
    assert "usage: holdover" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: VERB"),
        (["dream"], "'dream' is not a command of holdover; did you mean read, demo?"),
        (["qqq"], "it has backbones, compare, demo, eval, forecast, "),
        (["evla"], "did you mean eval?"),
        (["qa"], "required: ACTION"),
        (["qa", "aks"], "'qa aks' is not a command of holdover; did you mean qa ask, qa eval?"),
        (["--verson"], "--verson is not a flag of holdover; did you mean --version?"),
        (["read"], "required: BOOK, --session; see holdover read --help."),
        (["generate", "--top-k", "many"], "argument --top-k: invalid int value: 'many'"),
    ],
)
def test_what_cannot_be_parsed(arguments, said, capsys):
    assert said in refusal(capsys, *arguments)


def test_an_unknown_flag_names_its_neighbours(capsys):
    assert "--minuts is not a flag of holdover demo; did you mean --minutes?" in refusal(
        capsys, "demo", "--minuts", "3"
    )


def test_interrupted(monkeypatch, capsys):
    def interrupt(parsed):
        raise KeyboardInterrupt

    monkeypatch.setattr(backbones, "show_backbones", interrupt)
    assert cli.main(["backbones"]) == 130
    assert capsys.readouterr().err == "holdover: interrupted.\n"


def test_other_failures_keep_their_traceback(monkeypatch):
    def fail(parsed):
        raise RuntimeError("a defect")

    monkeypatch.setattr(backbones, "show_backbones", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main(["backbones"])
