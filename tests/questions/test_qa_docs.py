"""What docs/qa.md tells a newcomer to type, typed: shortened, but otherwise as it stands."""

import json
import re
import shlex
from pathlib import Path

import pytest

from holdover.cli import entry as cli
from holdover.questions.files import read_questions
from readers import save_encoder, sweet_or_hard, write_questions

GUIDE = (Path(__file__).parents[2] / "docs" / "qa.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, re.S)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_encoder(tmp_path / "my-encoder")
    write_questions(tmp_path / "questions.json", sweet_or_hard(20))
    (tmp_path / "long-text.txt").write_text("it is sweet , " + "w1 w2 w3 " * 40 + "apple stone")
    return tmp_path


def test_the_commands(here, capsys):
    commands = [shlex.split(line) for line in blocks("")[0].splitlines()]
    assert [words[2] for words in commands] == ["train", "train", "eval", "ask"]
    for words in commands:
        shorter = ["epochs=1"] if words[2] == "train" else []
        assert cli.main([*words[1:], *shorter]) == 0, capsys.readouterr().err
    record = json.loads((here / "runs/qa-eval/qa_eval.json").read_text())
    assert [row["name"] for row in record["rows"]] == ["recurrent", "plain"]
    assert "window" in capsys.readouterr().out.splitlines()[-2]


def test_the_record(here):
    Path("shown.json").write_text(blocks("json")[0])
    (found,) = read_questions(Path("shown.json"))
    assert found.answer in found.context and found.type == "bridge"


def test_the_same_in_python(here, capsys):
    (example,) = blocks("python")
    exec(example.replace("epochs=2", "epochs=1"), {})
    *_, start, stop = capsys.readouterr().out.splitlines()[-1].split()
    assert 0 <= int(start) < int(stop)
