"""Runs of an experiment: each once, one record each, and what was interrupted goes on."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from experiments import Forked, experiment_file
from holdover.cli import entry as cli
from holdover.experiments import parallel_runner as together
from holdover.experiments.experiment_file import open_experiment
from holdover.experiments.options import RunOptions
from holdover.experiments.parallel_runner import Together
from holdover.experiments.records import read_records
from holdover.experiments.runner import RAN_OUT, run_experiment, run_experiments


def options(tmp_path, **given):
    return RunOptions(results=tmp_path / "results", output=tmp_path / "runs", device="cpu", **given)


def run(tmp_path, path=None, **given):
    return run_experiment(path or experiment_file(tmp_path), options(tmp_path, **given))


def times_done(tmp_path, name, scale="smoke"):
    found = (tmp_path / "runs" / "nothing" / scale).glob(f"{name}-*/times")
    return sorted(len(path.read_text()) for path in found)


def test_a_record_says_what_was_done(tmp_path):
    records = run(tmp_path)
    assert set(records.found) == {
        f"{arm}-seed{seed}" for arm in ("plain", "with-state", "late") for seed in (0, 1, 2)
    }
    record = records.found["with-state-seed1"]
    assert record["arm"] == "with state" and record["seed"] == 1 and record["scale"] == "smoke"
    assert record["settings"] == {"nats": 2.9, "spread": 0.25}
    assert record["measures"]["loss"]["value"] == pytest.approx(2.91)
    assert record["curves"] == {"by position": [[1, pytest.approx(2.91)], [2, pytest.approx(2.41)]]}
    assert record["data"] == [{"source": "a text", "split": "test", "sha256": "abc" * 20}]
    assert record["seconds"] >= 0 and record["peak_memory"]["bytes"] > 0
    assert {"commit", "versions", "device", "command", "date"} <= set(record["provenance"])
    # What comes after another run knows what was measured there.
    assert records.found["late-seed2"]["measures"]["loss"] == pytest.approx(2.02)


def test_what_has_a_record_is_left_out(tmp_path, capsys):
    run(tmp_path)
    run(tmp_path)
    assert times_done(tmp_path, "plain-seed0") == [1]
    assert "9 runs, 9 have a record" in capsys.readouterr().out
    (tmp_path / "results" / "nothing" / "smoke" / "plain-seed0.json").unlink()
    run(tmp_path)
    assert times_done(tmp_path, "plain-seed0") == [2] and times_done(tmp_path, "plain-seed1") == [1]


def test_other_settings_are_another_run_in_another_folder(tmp_path):
    first = run(tmp_path).found
    again = run(tmp_path, experiment_file(tmp_path, state=2.5)).found
    assert first["plain-seed0"] == again["plain-seed0"]
    assert first["with-state-seed0"]["fingerprint"] != again["with-state-seed0"]["fingerprint"]
    assert again["with-state-seed0"]["measures"]["loss"]["value"] == 2.5
    assert times_done(tmp_path, "with-state-seed0") == [1, 1]


def test_an_interrupted_run_goes_on_in_its_folder(tmp_path):
    folder = next(iter(_folders(tmp_path, "plain-seed0")))
    (folder / "stop").touch()
    with pytest.raises(ValueError, match="2 of 9 runs failed .*plain-seed0: it was told to fail"):
        run(tmp_path)
    found = read_records(tmp_path / "results" / "nothing" / "smoke").found
    # Only what needs it waits for it.
    assert len(found) == 7 and "late-seed0" not in found and "late-seed1" in found
    (folder / "stop").unlink()
    run(tmp_path)
    assert times_done(tmp_path, "plain-seed0") == [2] and times_done(tmp_path, "plain-seed1") == [1]


def _folders(tmp_path, name):
    """Where a run will work: known from a run elsewhere."""
    run(tmp_path / "elsewhere", experiment_file(tmp_path))
    for path in (tmp_path / "elsewhere" / "runs" / "nothing" / "smoke").glob(f"{name}-*"):
        own = tmp_path / "runs" / "nothing" / "smoke" / path.name
        own.mkdir(parents=True)
        yield own


def test_a_file_is_read_as_it_stands(tmp_path, monkeypatch):
    """Also where it was changed within a second, to as many characters."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    nats = []
    for state in (2.9, 2.8):
        path = experiment_file(tmp_path, state=state)
        os.utime(path, (10**9, 10**9))
        _, experiment = open_experiment(path)
        nats.append(experiment.runs("smoke", (0,))[1].settings["nats"])
    assert nats == [2.9, 2.8]


def test_side_by_side_is_the_same(tmp_path):
    alone = run(tmp_path / "alone", experiment_file(tmp_path), seeds=(4,)).found
    together = run(tmp_path / "both", experiment_file(tmp_path), seeds=(4,), together=2).found
    assert {name: record["measures"] for name, record in alone.items()} == {
        name: record["measures"] for name, record in together.items()
    }
    assert {r["fingerprint"] for r in alone.values()} == {
        r["fingerprint"] for r in together.values()
    }


@pytest.fixture
def two_files(tmp_path):
    first = experiment_file(tmp_path)
    return [first, shutil.copy(first, tmp_path / "other.py")]


def test_several_experiments_one_after_the_other(two_files, tmp_path, capsys):
    words = [*map(str, two_files), "--seeds", "4", "only=plain", "--device", "cpu"]
    words += ["--results", str(tmp_path / "results"), "--output", str(tmp_path / "runs")]
    assert cli.main(["run", *words]) == 0
    for name in ("nothing", "other"):
        assert set(read_records(tmp_path / "results" / name / "smoke").found) == {"plain-seed4"}
    told = capsys.readouterr().out
    assert "nothing, smoke: 1 runs" in told and "other, smoke: 1 runs" in told


def test_several_experiments_side_by_side(two_files, tmp_path, monkeypatch, capsys):
    started, asked = subprocess.Popen, []

    def popen(command, **how):
        if "holdover" not in command:
            return started(command, **how)
        asked.append([command[command.index("run") + 1], command[command.index("--only") + 1]])
        return started(["true"], **how)

    monkeypatch.setattr(subprocess, "Popen", popen)
    run_experiments(two_files, options(tmp_path, only=("plain",), seeds=(0, 1), together=3))
    # In the order in which they were given, each of its own file.
    names = ("plain-seed0", "plain-seed1")
    assert asked == [[str(path), name] for path in two_files for name in names]
    assert "4 of 4: " in (told := capsys.readouterr().out) and "other: plain-seed1 done" in told


def test_what_is_asked_for_may_be_in_any_of_several(two_files, tmp_path):
    own = two_files[1].read_text().replace('"with state"', '"with more"')
    two_files[1].write_text(own)
    found = run_experiments(two_files, options(tmp_path, only=("with more",), seeds=(0,)))
    assert [set(records.found) for records in found] == [set(), {"with-more-seed0"}]
    with pytest.raises(ValueError, match="nothing, other have no arm or run 'less': their arms"):
        run_experiments(two_files, options(tmp_path, only=("less",)))
    with pytest.raises(ValueError, match="nothing was given twice"):
        run_experiments([two_files[0]] * 2, options(tmp_path))


class Process:
    """The run of seed 0 ends at once, well where no more than `fits` run; others at the third look."""

    def __init__(self, job, fits):
        self.job, self.fits, self.looks, self.returncode = job, fits, 0, None

    def poll(self):
        self.looks += 1
        if self.job.run.seed == 0:
            self.returncode = 0 if self.job.beside < self.fits else 2
        elif self.looks > 2:
            self.returncode = 0
        return self.returncode


@pytest.mark.parametrize(("fits", "tries"), [(4, [8, 4]), (1, [8, 4, 2]), (0, [8, 4, 2])])
def test_too_little_memory_beside_others(tmp_path, monkeypatch, capsys, fits, tries):
    """It is tried again beside half as many, until it was alone."""
    limits = []

    def start(together, job):
        if job.run.seed == 0:
            limits.append(job.most)
            folder = job.keeper.folder_of(job.run)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / RAN_OUT).touch()
        return Process(job, fits)

    monkeypatch.setattr(Together, "_start", start)
    monkeypatch.setattr("holdover.experiments.parallel_runner.PATIENCE", 0.0)
    expected = pytest.raises(ValueError, match=r"1 of 12 runs failed \(plain-seed0: see")
    with nullcontext() if fits else expected:
        run(tmp_path, together=8, only=("plain",), seeds=tuple(range(12)))
    told = capsys.readouterr().out
    assert "there was too little memory for plain-seed0: later, beside fewer" in told
    assert "12 of 12" in told and limits == tries


@pytest.mark.parametrize(("given", "threads"), [(None, "2"), ("7", "7")])
def test_side_by_side_each_has_its_part_of_the_cores(tmp_path, monkeypatch, given, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    started, found = subprocess.Popen, []

    def popen(command, **how):
        if "holdover" not in command:
            return started(command, **how)
        found.append(how["env"]["OMP_NUM_THREADS"])
        # A process takes seconds to begin, and what it would do is no matter here.
        return started(["false"], **how)

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(ValueError, match="2 of 2 runs failed"):
        run(tmp_path, together=4, only=("plain",), seeds=(0, 1))
    assert found == [threads] * 2


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (("*state",), {"with-state-seed0", "with-state-seed1"}),
        (("pl*", "*-seed1"), {"plain-seed0", "plain-seed1", "with-state-seed1", "late-seed1"}),
    ],
)
def test_patterns_name_arms_and_runs(tmp_path, only, names):
    assert set(run(tmp_path, only=only, seeds=(0, 1)).found) == names


@pytest.mark.parametrize(("many", "seeds"), [(1, (0, 1, 2)), (2, (0,))])
def test_tidy_leaves_records_and_what_is_still_needed(many, seeds, tmp_path, monkeypatch):
    monkeypatch.setattr(together, "subprocess", SimpleNamespace(Popen=Forked))
    folders = tmp_path / "runs" / "nothing" / "smoke"
    common = {"tidy": True, "together": many, "seeds": seeds}
    # What comes late is not asked for yet: what it comes after stays.
    run(tmp_path, only=("plain", "with state"), **common)
    kept = {path.name.rpartition("-")[0] for path in folders.iterdir() if path.is_dir()}
    assert kept == {f"plain-seed{seed}" for seed in seeds}
    records = run(tmp_path, **common)
    assert len(records.found) == 3 * len(seeds)
    assert not [path for path in folders.iterdir() if path.is_dir()]


def test_what_measures_time_runs_alone(tmp_path, monkeypatch):
    """Runs note when they began and ended; nothing overlaps the one that is to be alone."""
    monkeypatch.setattr(together, "subprocess", SimpleNamespace(Popen=Forked))
    path = experiment_file(tmp_path)
    text = path.read_text().replace("import json", "import json, time")
    begin = '    times = work.folder / "times"'
    text = text.replace(begin, "    began = time.time(); time.sleep(1)\n" + begin)
    text = text.replace('"flops": 100 +', '"began": began, "ended": time.time(), "flops": 100 +')
    line = 'Run("with state", measure, {"nats": STATE, "spread": 0.25}, seed'
    assert line in text
    path.write_text(text.replace(line, line + ", alone=seed == 1"))
    chosen = ("plain", "with-state-seed1")
    found = run(tmp_path, path, together=2, only=chosen, seeds=(1, 0)).found
    spans = {
        name: (one["measures"]["began"], one["measures"]["ended"]) for name, one in found.items()
    }
    began, ended = spans.pop("with-state-seed1")
    assert len(spans) == 2
    assert all(end <= began or begin >= ended for begin, end in spans.values())


def test_an_error_of_an_experiment_stops_no_other_run(tmp_path, capsys):
    path = experiment_file(tmp_path)
    line = '        nats = work.settings["nats"]'
    error = '        if work.seed == 1: raise TypeError("broken")\n'
    path.write_text(path.read_text().replace(line[4:], error[4:] + line[4:]))
    with pytest.raises(ValueError, match=r"3 of 9 runs failed \(plain-seed1: TypeError: broken"):
        run(tmp_path, path)
    assert len(read_records(tmp_path / "results" / "nothing" / "smoke").found) == 6
    assert "Traceback" in capsys.readouterr().out


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, ValueError])
def test_a_run_says_that_memory_ran_out(error, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "holdover.experiments.run_context.Work.read", lambda *_: _raise(error("too little"))
    )
    with pytest.raises(ValueError, match="plain-seed0: too little"):
        run(tmp_path, only=("plain",), seeds=(0,))
    (folder,) = (tmp_path / "runs" / "nothing" / "smoke").iterdir()
    assert (folder / RAN_OUT).exists() == (error is torch.OutOfMemoryError)
    monkeypatch.undo()
    run(tmp_path, only=("plain",), seeds=(0,))
    assert not (folder / RAN_OUT).exists()


def _raise(error):
    raise error


def test_nothing_is_left_running_behind_an_interruption(tmp_path, monkeypatch):
    """Runs that were started are asked to end, and waited for."""
    asked = []

    class Process:
        returncode = None

        def poll(self):
            raise KeyboardInterrupt

        def terminate(self):
            asked.append("terminate")

        def wait(self):
            asked.append("wait")

    monkeypatch.setattr(Together, "_start", lambda self, job: Process())
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, together=2)
    assert asked == ["terminate", "terminate", "wait", "wait"]


def test_only_some_with_what_they_need(tmp_path):
    found = run(tmp_path, only=("late-seed1",)).found
    assert set(found) == {"late-seed1", "plain-seed1"}
    run(tmp_path, only=("late-seed1",), again=True)
    assert times_done(tmp_path, "plain-seed1") == [1]
    assert set(run(tmp_path, only=("with state",)).found) == set(found) | {
        f"with-state-seed{seed}" for seed in (0, 1, 2)
    }


def test_seeds_of_a_scale_that_plans_none(tmp_path):
    """What is asked for runs; how many there should be nobody has said."""
    run(tmp_path, scale="real", seeds=(4,))
    about = json.loads((tmp_path / "results" / "nothing" / "real" / "experiment.json").read_text())
    assert about["planned"] == {}
    assert "plain-seed4" in read_records(tmp_path / "results" / "nothing" / "real").found


def test_a_list_does_nothing(tmp_path, capsys):
    run(tmp_path, list=True)
    assert "late-seed2  to run" in capsys.readouterr().out
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], r"There is no experiment at .*missing\.py: there is .*nothing\.py"),
        (["nothing.py", "--scale", "real"], "nothing has no scale real: it has smoke, small"),
        (
            ["nothing.py", "--only", "other"],
            "no arm or run 'other': its arms are plain, with state",
        ),
        (["empty.py"], r"empty\.py defines no experiment: give it EXPERIMENT"),
        (
            ["broken.py"],
            r"broken\.py cannot be read \(ModuleNotFoundError: No module named 'nowhere'\)",
        ),
        (["nothing.py", "--together", "0"], "--together 0 must be at least 1"),
        (["nothing.py", "--scale", "huge"], "huge"),
    ],
)
def test_bad_requests(words, said, tmp_path, capsys):
    experiment_file(tmp_path)
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "broken.py").write_text("import nowhere")
    words = [str(tmp_path / words[0]), *words[1:], "--results", str(tmp_path / "results")]
    assert cli.main(["run", *words, "--output", str(tmp_path / "runs")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert re.search(said, told), told


def test_a_damaged_record_is_named(tmp_path):
    run(tmp_path)
    path = tmp_path / "results" / "nothing" / "smoke" / "plain-seed0.json"
    path.write_text("{")
    with pytest.raises(ValueError, match=r"plain-seed0\.json cannot be read as a record"):
        run(tmp_path)


def test_records_hold_no_places_of_this_machine(tmp_path):
    run(tmp_path)
    for path in (tmp_path / "results").rglob("*.json"):
        assert str(tmp_path) not in json.dumps(json.loads(path.read_text()))


def test_folders_are_tried_by_several_at_once(tmp_path):
    from concurrent.futures import ProcessPoolExecutor

    from holdover.runs.provenance import make_folder

    with ProcessPoolExecutor(2) as pool:
        list(pool.map(make_folder, [tmp_path] * 400, chunksize=20))
    assert not list(tmp_path.iterdir())
