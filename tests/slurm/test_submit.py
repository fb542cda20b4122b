"""holdover submit and jobs without a cluster: words, scripts, sweeps, records, refusals."""

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from experiments import experiment_file
from holdover.cli import entry as cli
from holdover.slurm import scheduler, send, states
from holdover.slurm.keeper import JobKeeper
from holdover.slurm.parameters import minutes
from holdover.slurm.records import (
    JobRecord,
    begin_submission,
    find_jobs,
    read_submissions,
    status_path,
)
from holdover.slurm.scheduler import SlurmState
from holdover.slurm.send import Job, in_waves, known_parameters
from holdover.slurm.sweep import variations
from holdover.training.signals import Signals
from refusals import refusal

TRAIN = ["train", "--model", "gpt2", "--data", "novel.txt", "--output", "runs/x"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def scripts(capsys, *words: str) -> str:
    """What --dry-run prints."""
    assert cli.main(["submit", "--dry-run", *words]) == 0, capsys.readouterr().err
    assert not Path("runs").exists()
    return capsys.readouterr().out


def test_a_script(capsys):
    asked = ["partition=gpu", "nodes=2", "gpus_per_node=a100:4", "time=1-2:30", "mem=16G"]
    asked += ["extra.licenses=a:1"]
    text = scripts(
        capsys, "--slurm", *asked, "setup=module load cuda", "exclusive=true", "--", *TRAIN
    )
    lines = text.splitlines()
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --nodes=2",
        "#SBATCH --gpus-per-node=a100:4",
        "#SBATCH --time=1590",
        "#SBATCH --mem=16G",
        "#SBATCH --licenses=a:1",
        "#SBATCH --exclusive",
        "#SBATCH --requeue",
        "#SBATCH --signal=USR2@90",
        "#SBATCH --job-name=holdover-train",
        "module load cuda",
        f"# job 0: holdover {' '.join(TRAIN)} --resume-if-begun",
    ):
        assert line in lines
    assert "--array" not in text and "srun " in text


def test_every_key_of_submitit_is_taken_with_hyphens_and_underscores(capsys):
    values = {"dependency": "afterok:1", "mail_user": "me@here.org", "exclude": "a,b"}
    decided = set(import_module("holdover.slurm.parameters").DECIDED)
    names = sorted(known_parameters() - decided)
    asked = [f"{name}={values.get(name, '3')}" for name in names]
    told = [
        scripts(capsys, "--slurm", *words, "--", *TRAIN)
        for words in (asked, [word.replace("_", "-") for word in asked])
    ]
    assert told[0] == told[1] and "#SBATCH --mail-user=me@here.org" in told[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [("90", 90), ("1:30", 2), ("2:00:00", 120), ("1-0", 1440), ("1-2:30", 1590), ("0-0:0:1", 1)],
)
def test_times_as_slurm_writes_them(text, found):
    assert minutes(text) == found


def test_a_sweep_is_an_array_with_a_folder_each(capsys):
    sweeps = ("--sweep", "lr=1e-4,3e-4", "--sweep", "betas=0.9,0.95;0.9,0.99")
    text = scripts(capsys, *sweeps, "--slurm", "array-parallelism=2", "--", *TRAIN)
    assert "#SBATCH --array=0-3%2" in text
    jobs = [line for line in text.splitlines() if line.startswith("# job")]
    assert len(jobs) == 4
    assert jobs[1].endswith(
        "--resume-if-begun lr=1e-4 betas=0.9,0.99 output=runs/x/lr=1e-4_betas=0.9-0.99"
    )
    assert [one.words for one in variations([])] == [()]


def test_an_experiment_is_a_job_a_run_behind_those_it_needs(capsys, tmp_path):
    path = str(experiment_file(tmp_path))
    text = scripts(capsys, "--slurm", "partition=cpu", "--", "run", path, "--scale", "smoke")
    first, *later = text.split("#!/bin/bash")[1:]
    assert "--array=0-5%6" in first and "dependency" not in first
    assert f"# job 1: holdover run {path} --scale smoke only=with-state-seed0 together=1" in first
    assert len(later) == 3
    assert "#SBATCH --dependency='afterok:<plain-seed0>'" in later[0]
    assert "#SBATCH --kill-on-invalid-dep=yes" in later[0] and "only=late-seed0" in later[0]
    assert cli.main(["run", path, "--results", "r"]) == 0
    assert "have a record" in refusal(
        capsys_after(capsys), "submit", "--dry-run", "--", "run", path, "--results", "r"
    )


def capsys_after(capsys):
    """What was printed before is not looked at."""
    capsys.readouterr()
    return capsys


def test_groups_come_behind_what_they_wait_for():
    jobs = [
        Job("a", []),
        Job("b", [], ("a",)),
        Job("c", [], ("b",)),
        Job("d", []),
        Job("e", [], ("a",)),
    ]
    named = [[job.name for job in group] for group in in_waves(jobs)]
    assert named == [["a", "d"], ["b", "e"], ["c"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "The command to run is missing: write it after --"),
        (["--slurm", "partition=gpu", *TRAIN], "The command to run is missing"),
        (["--slurm", "gpu", "--", *TRAIN], "the command to run after --"),
        (["--", "trian"], "did you mean train?"),
        (["--", "demo"], "it sends train, qa train, forecast train, run, eval"),
        (["--", "qa", "ask"], "'qa ask' is not a command"),
        (["--", *TRAIN, "--lerning-rate", "1"], "did you mean --learning-rate"),
        (["--", "train", "--model", "gpt2"], "Say which data"),
        (["--slurm", "partitoin=gpu", "--", *TRAIN], "did you mean partition"),
        (["--slurm", "licenses=a", "--", *TRAIN], "extra.licenses=VALUE"),
        (["--slurm", "time=soon", "--", *TRAIN], "time=soon is not a time"),
        (["--slurm", "nodes=1-2", "--", *TRAIN], "nodes=1-2 must be a whole number"),
        (["--slurm", "ntasks-per-node=2", "--", *TRAIN], "--processes-per-node"),
        (["--slurm", "nodes=2", "--", "eval", "--model", "a", "--data", "b"], "one process"),
        (["--processes-per-node", "0", "--", *TRAIN], "must be at least 1"),
        (["--requeues", "-1", "--", *TRAIN], "must be at least 0"),
        (["--sweep", "lr", "--", *TRAIN], "must name a setting and its values"),
        (["--sweep", "lr=1,1", "--", *TRAIN], "lists a value twice"),
        (["--sweep", "output=a,b", "--", *TRAIN], "has its own folder"),
        (["--sweep", "lr=1", "--sweep", "lr=2", "--", *TRAIN], "was given twice"),
        (["--sweep", "data=a/b,a-b", "--", *TRAIN], "would have the same folder"),
        (["--sweep", "colour=1,2", "--", *TRAIN], "'colour' is not a setting"),
        (["--sweep", "seeds=1,2", "--", "run", "x.py"], "--sweep is not for experiments"),
        (["--", "run", "x.py"], "There is no experiment at x.py"),
        (["--", "run", "x.py", "y.py"], "submit each experiment separately"),
    ],
)
def test_refusals(words, said, capsys):
    assert said in refusal(capsys, "submit", *words)
    assert not Path("runs/jobs").exists()


def test_what_is_not_there(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert "sbatch is not on this machine" in refusal(capsys, "submit", "--", *TRAIN)
    assert list(Path("runs/jobs").iterdir()) == []
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert "holdover[slurm]" in refusal(capsys, "submit", "--", *TRAIN)


def submitted(**statuses: dict) -> list:
    """A submission whose jobs noted what is given."""
    submission = begin_submission(Path("jobs"), ["train"], {})
    for number, status in statuses.items():
        job = number.removeprefix("job")
        submission.jobs.append(JobRecord(job, "train", ["train"]))
        if status:
            Path(status_path(submission.folder).format(id=job)).write_text(json.dumps(status))
    submission.write()
    return read_submissions(Path("jobs"))


def test_states_come_from_the_jobs_notes_and_from_slurm(monkeypatch):
    seen = {
        "3": SlurmState("PENDING", "BeginTime"),
        "4": SlurmState("OUT_OF_MEMORY", exit_code=137),
        "6_1": SlurmState("COMPLETING"),
        "8": SlurmState("CANCELLED"),
    }
    asked: list[str] = []
    monkeypatch.setattr(states, "ask", lambda ids: asked.extend(ids) or seen)
    submissions = submitted(
        job1={"state": "done", "restarts": 2, "exit_code": 0},
        job2={"state": "failed", "exit_code": 2},
        job3={"state": "requeued", "restarts": 0},
        job4={"state": "running"},
        job5={"state": "stopped"},
        job6_1={"state": "running"},
        job7={},
        job8={},
    )
    found = {one.id: (one.state, one.why) for one in states.job_statuses(submissions)}
    assert found == {
        "1": ("done", ""),
        "2": ("failed", "exit code 2"),
        "3": ("queued", "BeginTime"),
        "4": ("failed", "SLURM: out of memory, exit code 137"),
        "5": ("cancelled", ""),
        "6_1": ("running", ""),
        "7": ("lost", "SLURM has no record of it"),
        "8": ("cancelled", ""),
    }
    # What has noted its end is not asked for.
    assert asked == ["3", "4", "5", "6_1", "7", "8"]
    monkeypatch.setattr(states, "ask", lambda ids: None)
    quiet = {one.id: one.state for one in states.job_statuses(submissions)}
    assert quiet["7"] == "queued" and quiet["4"] == "running"
    submissions[0].cancelled.append("4")
    assert states.job_statuses(submissions)[3].state == "cancelled"
    assert find_jobs(submissions, "6")[1] == ["6_1"]


def test_jobs_are_shown_with_their_last_words(capsys, monkeypatch):
    monkeypatch.setattr(states, "ask", lambda ids: {})
    assert cli.main(["jobs"]) == 0
    assert "No jobs were submitted" in capsys.readouterr().out
    (submission,) = submitted(job2={"state": "failed", "exit_code": 2})
    submission.log("2", "err").write_text("holdover: no such text.\nsrun: error: task 0\n")
    assert cli.main(["jobs", "--jobs", "jobs", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told["state"] == "failed" and told["last_line"] == "holdover: no such text."
    assert cli.main(["jobs", "--jobs", "jobs"]) == 0
    assert "exit code 2" in capsys.readouterr().out
    assert cli.main(["jobs", "--jobs", "jobs", "--cancel", "2"]) == 0
    assert "2 has ended" in capsys.readouterr().out
    assert "the latest are 2" in refusal(capsys, "jobs", "--jobs", "jobs", "--cancel", "7")


def test_slurms_programs_are_understood(monkeypatch):
    told = {
        "squeue": ["12_0|RUNNING|None", "12_1|PENDING|Resources"],
        "sacct": None,
        "scontrol": [
            "JobId=14 ArrayJobId=12 ArrayTaskId=2 JobName=x JobState=FAILED Reason=None ExitCode=2:0",
            "JobId=15 JobName=x JobState=CANCELLED Reason=None ExitCode=0:15",
        ],
    }
    monkeypatch.setattr(scheduler, "_output_lines", lambda program, *words: told[program])
    assert scheduler.ask(["12_0", "12_1", "12_2", "15", "16"]) == {
        "12_0": SlurmState("RUNNING"),
        "12_1": SlurmState("PENDING", "Resources"),
        "12_2": SlurmState("FAILED", "None", 2),
        "15": SlurmState("CANCELLED", "None", 143),
    }
    told["sacct"] = ["16|CANCELLED by 0|0:0"]
    assert scheduler.ask(["16"]) == {"16": SlurmState("CANCELLED", exit_code=0)}
    told["squeue"] = None
    assert scheduler.ask(["16"]) is None


class Nodes:
    """What submitit tells of two nodes."""

    num_nodes, node, raw_job_id, hostnames = 2, 1, "41", ["first", "second"]


def test_torchrun_meets_on_the_first_node():
    words = JobKeeper(["train"], True, 4, "x")._command(Nodes)
    told = " ".join(words)
    assert "-m torch.distributed.run" in told and told.endswith("-m holdover train")
    for part in ("--nnodes 2", "--node-rank 1", "--master-addr first", "--nproc-per-node 4"):
        assert part in told
    assert JobKeeper(["train"], False, 1, "x")._command(Nodes)[1:] == ["-m", "holdover", "train"]


def test_the_keeper_imports_nothing_of_holdover(monkeypatch):
    """Sent along by value, it is read where holdover's own import has not happened."""
    import cloudpickle

    from holdover.slurm import keeper

    cloudpickle.register_pickle_by_value(keeper)
    try:
        sent = cloudpickle.dumps(JobKeeper(["train"], False, 1, "x"))
    finally:
        cloudpickle.unregister_pickle_by_value(keeper)
    read = "import pickle, sys; pickle.load(sys.stdin.buffer); print('holdover' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", read], input=sent, capture_output=True, check=True)
    assert done.stdout.strip() == b"False"


def test_a_signal_that_a_process_was_started_to_ignore_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with Signals() as signals:
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.name is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert signals.name == "SIGUSR1"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_refused_submission_leaves_nothing(capsys, monkeypatch):
    monkeypatch.setattr(send, "need", lambda program: None)
    monkeypatch.setattr(import_module("submitit").SlurmExecutor, "affinity", lambda self: 1)

    def refuse(*keepers):
        error = import_module("submitit.core.utils").FailedJobError
        raise error("sbatch: error: invalid partition specified: nowhere\n")

    monkeypatch.setattr(import_module("submitit").SlurmExecutor, "submit_array", refuse)
    told = refusal(capsys, "submit", "--slurm", "partition=nowhere", "--", *TRAIN)
    assert "(invalid partition specified: nowhere): change the options after --slurm" in told
    assert list(Path("runs/jobs").iterdir()) == []
