"""What is wrong with a report that is asked for, or with the records it is to be made of."""

import json

import pytest

from experiments import experiment_file
from holdover.cli import entry as cli
from holdover.experiments.options import RunOptions
from holdover.experiments.runner import run_experiment


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Records of an experiment, made once."""
    folder = tmp_path_factory.mktemp("made")
    given = {"results": folder / "results", "output": folder / "runs", "device": "cpu"}
    run_experiment(experiment_file(folder), RunOptions(**given))
    return {path.name: path.read_bytes() for path in folder.glob("results/nothing/smoke/*")}


@pytest.fixture
def records(made, tmp_path):
    folder = tmp_path / "results" / "nothing" / "smoke"
    folder.mkdir(parents=True)
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return folder


def said(records, capsys, *words):
    """The one sentence that a report is refused with; none where it is made."""
    results, page = records.parent.parent, records.parent.parent.parent / "page.html"
    places = ["--results", str(results), "--output", str(page), "--scales", "smoke"]
    code = cli.main(["report", *places, *words])
    told = capsys.readouterr().err
    assert code == (2 if told else 0) and told.count("\n") == (1 if told else 0)
    return told


def without(record, name):
    outer, _, inner = name.partition(".")
    if inner:
        return {**record, outer: without(record[outer], inner)}
    return {key: value for key, value in record.items() if key != name}


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"record": "other"}', "{", "\udc80"])
def test_a_file_that_is_no_record_is_named(content, records, capsys):
    path = records / "plain-seed0.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    told = said(records, capsys)
    assert f"{path} cannot be read as a record" in told and "run its experiment again" in told


@pytest.mark.parametrize(
    "name",
    [
        *("run", "arm", "seed", "fingerprint", "measures", "curves", "notes", "data", "seconds"),
        *(
            "peak_memory",
            "peak_memory.bytes",
            "provenance",
            "provenance.device",
            "provenance.commit",
            "provenance.date",
            "provenance.versions",
            "provenance.command",
        ),
    ],
)
def test_a_record_that_lacks_something_is_named(name, records, capsys):
    path = records / "plain-seed0.json"
    path.write_text(json.dumps(without(json.loads(path.read_text()), name)))
    assert f"plain-seed0.json cannot be read as a record ('{name}' is missing)" in said(
        records, capsys
    )


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("measures", [], "'measures' is of the wrong type"),
        ("data", [{}], "an entry of 'data' has no 'source'"),
    ],
)
def test_a_record_that_holds_something_else_is_named(name, value, why, records, capsys):
    path = records / "plain-seed0.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    assert f"plain-seed0.json cannot be read as a record ({why})" in said(records, capsys)


@pytest.mark.parametrize("layout", [None, "{}", '{"claims": [{}]}', "no title"])
def test_a_layout_that_is_missing_or_damaged_is_written_by_what_is_advised(
    layout, records, tmp_path, capsys
):
    path = records / "experiment.json"
    before = path.read_text()
    if layout == "no title":
        layout = json.dumps(without(json.loads(before), "title"))
    path.unlink()
    if layout is not None:
        path.write_text(layout)
    told = said(records, capsys)
    assert "experiment.json" in told and "There are no records" not in told
    if layout is not None:
        assert f"{path} does not say what its records show" in told and "delete it" in told
        path.unlink()
    advised = told[told.index("holdover run") : told.index(" writes it")].split()[1:]
    file = experiment_file(tmp_path)
    assert f"the experiment's file {file.name}." in told
    times = {path: path.stat().st_mtime_ns for path in records.iterdir()}
    assert cli.main([str(file) if word == "FILE" else word for word in advised]) == 0
    assert "experiment.json was missing next to the records" in capsys.readouterr().out
    assert path.read_text() == before and not said(records, capsys)
    # Nothing was made again.
    assert all(other.stat().st_mtime_ns == time for other, time in times.items())


def test_json_of_others_is_no_experiment(records, capsys):
    """Only what looks like a record is missed its layout."""
    other = records.parent.parent / "other" / "smoke"
    other.mkdir(parents=True)
    (other / "speed.json").write_text("[1, 2]")
    assert not said(records, capsys)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["--scales", "smal"],
            "smal: use some of smoke, small, real, paper; did you mean small?\n",
        ),
        (["--scales", "huge"], "--scales huge: use some of smoke, small, real, paper."),
        (
            ["--experiments", "nothign"],
            "no records of nothign in {results}: there are records of nothing; did you mean nothing?\n",
        ),
        (
            ["--experiments", "nothing,memory"],
            "no records of memory in {results}: there are records",
        ),
        (
            ["--experiments", "nothing", "--scales", "paper,real"],
            "no records of nothing at the scale paper or real in {results}: give --scales smoke,",
        ),
        (["--scales", "paper"], "There are no records at the scale paper in {results} (the scale"),
    ],
)
def test_names_are_those_that_there_are(words, told, records, capsys):
    assert told.format(results=records.parent.parent) in said(records, capsys, *words)


def test_records_at_no_scale_are_named(records, capsys):
    moved = records.rename(records.parent / "old")
    report = ["report", "--results", str(moved.parent.parent)]
    assert cli.main(report) == 2
    assert f"{moved} holds records, but old is not a scale" in capsys.readouterr().err


def test_a_place_that_cannot_be_written(records, tmp_path, capsys):
    (tmp_path / "file").touch()
    place = tmp_path / "file" / "deeper"
    told = said(records, capsys, "--output", str(place / "page.html"))
    assert f"--output {place} cannot be written to (" in told and "give another folder" in told
    told = said(records, capsys, "--output", str(records))
    assert "it is a folder; give the name of a file" in told
    told = said(records, capsys, "--output", str(tmp_path / "page.md"))
    assert "give the page a name that ends with .html" in told


def test_only_experiments_are_offered(tmp_path, capsys):
    experiment_file(tmp_path)
    (tmp_path / "shared.py").write_text("EXPERIMENTS = 3\n")
    assert cli.main(["run", str(tmp_path / "missing.py")]) == 2
    told = capsys.readouterr().err
    assert f"there is {tmp_path / 'nothing.py'}." in told and "shared.py" not in told
    (tmp_path / "nothing.py").unlink()
    assert cli.main(["run", str(tmp_path / "missing.py")]) == 2
    assert "give the path of a Python file" in capsys.readouterr().err
