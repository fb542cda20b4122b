"""A kind of state from another package works by name, through its entry point."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = """
from carried_kinds import KeyValueTail


class Tail(KeyValueTail):
    pass
"""
METADATA = "Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n"
ENTRY_POINT = "[holdover.carries]\nother_tail = other_package:Tail\n"
SHAPE = "hidden_size=16,intermediate_size=24,num_hidden_layers=2,num_attention_heads=2"
TRAIN = f"--model llama --from-scratch --shape {SHAPE},num_key_value_heads=2 --tokenizer bytes"


@pytest.fixture
def run(tmp_path):
    """Runs holdover in a process that has the package installed."""
    site = tmp_path / "site"
    (site / "other_package-1.0.dist-info").mkdir(parents=True)
    (site / "other_package.py").write_text(PACKAGE)
    (site / "other_package-1.0.dist-info" / "METADATA").write_text(METADATA)
    (site / "other_package-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINT)
    support = Path(__file__).parents[1] / "support"
    paths = [str(site), str(support), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def command(words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "holdover", *words.split()],
            capture_output=True,
            text=True,
            env=environment,
            cwd=tmp_path,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done

    return command


def test_train_eval_and_session_by_name(run, tmp_path):
    (tmp_path / "text.txt").write_text("It was the best of times, it was the worst. " * 80)
    run(
        f"train {TRAIN} --data text.txt --window 16 --windows 2 --rows 2 --max-steps 2 "
        "--recurrence other_tail --recurrence.tail 3 --validation-tokens 200 --output run"
    )
    saved = json.loads((tmp_path / "run" / "best" / "config.json").read_text())
    assert saved["recurrence"]["carry"] == "other_tail" and saved["recurrence"]["tail"] == 3
    run(
        "eval --model run --data text.txt --document-tokens 300 --diagnose-windows 2 "
        "--timed-windows 2 --draws 100 --output evaluation"
    )
    record = json.loads((tmp_path / "evaluation" / "eval.json").read_text())
    assert record["model"]["recurrence"]["tail"] == 3
    assert record["rows"][0]["state"]["zeroed"]["above_own"] != 0
    run("read text.txt --model run --session text.hold")
    assert "other_tail" in run("session info text.hold").stdout
    assert run("generate --session text.hold --max-new-tokens 5").stdout


def test_a_setting_that_the_kind_does_not_have_is_refused(run, tmp_path):
    (tmp_path / "text.txt").write_text("It was the best of times. " * 40)
    words = f"train {TRAIN} --data text.txt --window 16 --recurrence other_tail"
    done = run(f"{words} --recurrence.slots 2 --output run", code=2)
    assert "has no effect with" in done.stderr
    done = run(f"{words[:-10]}no_such_kind --output run", code=2)
    assert "is not a kind of state" in done.stderr
