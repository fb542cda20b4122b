"""What docs/training.md tells a newcomer to type, typed: shortened, but otherwise as it stands."""

import json
import re
import shlex
from pathlib import Path

from holdover.cli import entry as cli

GUIDE = (Path(__file__).parent.parent / "docs" / "training.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.S)


def test_the_first_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    (settings,) = blocks("yaml")
    assert "epochs: 3" in settings
    (tmp_path / "run.yaml").write_text(settings.replace("epochs: 3", "max_steps: 2"))
    commands = [shlex.split(line) for line in blocks("")[0].splitlines()]
    assert [words[1] for words in commands] == ["train", "train", "eval", "eval", "compare", "plot"]
    for words in commands:
        shorter = ["--document-tokens", "400"] if words[1] == "eval" else []
        assert cli.main([*words[1:], *shorter]) == 0, capsys.readouterr().err
    recurrent, plain = (
        json.loads((tmp_path / f"runs/{name}-eval/eval.json").read_text())
        for name in ("recurrent", "plain")
    )
    assert plain["model"]["recurrence"]["carry"] == "none" and "state" in recurrent["rows"][0]
    assert recurrent["rows"][0]["per_unit"]["tokens"] == plain["rows"][0]["per_unit"]["tokens"]
    assert (tmp_path / "runs/plots/training.png").exists()


def test_recurrence_inside_attention(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    (settings,) = blocks("yaml")
    (tmp_path / "run.yaml").write_text(settings.replace("epochs: 3", "max_steps: 2"))
    _, section = GUIDE.split("## Recurrence inside attention")
    commands = [shlex.split(line) for line in section.split("```")[1].split("\n") if line]
    assert [words[1] for words in commands] == ["train", "eval", "compare"]
    plain = "train --config run.yaml --output runs/plain recurrence=none"
    evaluation = "eval --model runs/plain --data time-machine --output runs/plain-eval"
    for words in (plain.split(), evaluation.split(), *(words[1:] for words in commands)):
        shorter = ["--document-tokens", "400"] if words[0] == "eval" else []
        assert cli.main([*words, *shorter]) == 0, capsys.readouterr().err
    record = json.loads((tmp_path / "runs/rsa-eval/eval.json").read_text())
    assert record["model"]["recurrence"]["rsa"] and record["model"]["recurrence"]["carry"] == "none"


def test_the_same_in_python(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    (example,) = blocks("python")
    shorter = example.replace("max_steps=20", "max_steps=3")
    exec(shorter.replace("document_tokens=2000", "document_tokens=500"), {})
    assert float(capsys.readouterr().out.splitlines()[-1]) > 1
    assert len(json.loads((tmp_path / "runs/python-eval/eval.json").read_text())["rows"]) == 2
