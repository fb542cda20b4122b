"""The verbs submit and jobs: commands as jobs of a SLURM cluster."""

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .verb import Parser, Verb, find_verb

if TYPE_CHECKING:
    from ..slurm.records import Submission
    from ..slurm.request import ParsedRequest
    from ..slurm.states import JobStatus

JOBS = Path("runs/jobs")
# Characters of a job's last line.
LONGEST = 120
EXAMPLE = (
    "holdover submit --slurm partition=gpu gpus-per-node=1 time=4:00:00 -- train --config run.yaml"
)


class SubmitVerb(Verb):
    """Takes a command after --."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        words, command = list(words), []
        if not {"-h", "--help"} & set(words):
            end = words.index("--") if "--" in words else len(words)
            words, command = words[:end], words[end + 1 :]
            if not command:
                raise ValueError(
                    f"The command to run is missing: write it after --, as in: {EXAMPLE}."
                )
        parsed = super().parse(words)
        parsed.command = command
        return parsed


VERBS = (
    SubmitVerb(
        name="submit",
        help="send a command to a SLURM cluster as one or more jobs",
        usage="holdover submit [--slurm KEY=VALUE ...] [--sweep KEY=VALUE,...] [flags] -- COMMAND ...",
        description="Send train, eval, run, qa train, qa eval, forecast train or forecast eval to a "
        "SLURM cluster. Before its time limit, and when it is preempted, a job saves, is queued again "
        "and continues exactly. For an experiment (run), every run without a record becomes a job.",
        epilog=f"As in: {EXAMPLE}",
        arguments="cli.submit:add_submit_flags",
        run="cli.submit:submit",
    ),
    Verb(
        name="jobs",
        help="show, follow or cancel submitted jobs",
        description="Show every job that was submitted from here: queued, running, done, failed, "
        "cancelled, or lost if SLURM has no record of it; with the exit code and the job's last line.",
        arguments="cli.submit:add_jobs_flags",
        run="cli.submit:jobs",
    ),
)


def read_command(words: Sequence[str]) -> "ParsedRequest":
    """The checked settings of a command line, without carrying it out."""
    from ..slurm.request import ParsedRequest
    from .entry import VERBS

    verb, rest = find_verb(VERBS, words)
    parsed = verb.parse(rest)
    return ParsedRequest(verb.settings(parsed), getattr(parsed, "experiment", None))


def add_submit_flags(parser: Parser) -> None:
    parser.add_argument(
        "--slurm",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="options of sbatch: partition, account, qos, nodes, gpus-per-node, cpus-per-task, mem, "
        "time (default: 60 minutes), signal-delay-s (seconds of warning before the time limit, "
        "default: 90), setup (a shell line; may be repeated) and all others that submitit supports; "
        "extra.KEY=VALUE for the rest",
    )
    parser.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="several values of a setting, a job each; may be repeated, for all combinations. Every job "
        "has a folder inside --output. Separate values that contain commas by semicolons",
    )
    parser.add_argument(
        "--processes-per-node",
        type=int,
        metavar="N",
        help="processes that train, started by torchrun (default: one per GPU)",
    )
    parser.add_argument(
        "--requeues",
        type=int,
        default=20,
        metavar="N",
        help="how often a job is queued again after its time limit (default: 20); preemptions do not "
        "count",
    )
    parser.add_argument(
        "--follow", action="store_true", help="show the jobs' output until they have ended"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="print the script for sbatch, and send nothing"
    )
    _add_folder(parser)


def _add_folder(parser: Parser) -> None:
    parser.add_argument(
        "--jobs",
        type=Path,
        default=JOBS,
        metavar="DIR",
        help=f"folder of submissions, their scripts and logs (default: {JOBS})",
    )


def submit(parsed: argparse.Namespace) -> None:
    from ..slurm import request as requests

    request = requests.Request(
        parsed.command,
        parsed.slurm,
        parsed.sweep,
        parsed.jobs,
        parsed.processes_per_node,
        parsed.requeues,
    )
    if parsed.dry_run:
        print(requests.describe(request, read_command))
        return
    submission = requests.submit(request, read_command)
    for job in submission.jobs:
        print(f"Job {job.id}: {job.name}")
    print(f"Logs: {submission.folder}   states: holdover jobs", flush=True)
    if parsed.follow:
        _follow(submission, [job.id for job in submission.jobs])


def _follow(submission: "Submission", ids: Sequence[str]) -> None:
    from ..slurm.follow import follow

    try:
        ended = follow(submission, ids, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        print(
            f"No longer following; the jobs go on ({', '.join(ids)}): holdover jobs --follow ID follows "
            "again, holdover jobs --cancel ID cancels one.",
            file=sys.stderr,
        )
        return
    bad = [f"{job.id} {_state(job)}" for job in ended if job.state != "done"]
    if bad:
        raise ValueError(f"Not all jobs finished: {'; '.join(bad)}.")


def add_jobs_flags(parser: Parser) -> None:
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--cancel", nargs="+", default=[], metavar="ID", help="cancel jobs, or a whole array"
    )
    action.add_argument("--follow", metavar="ID", help="show the output of a job or an array")
    action.add_argument("--json", action="store_true", help="as JSON")
    _add_folder(parser)


def jobs(parsed: argparse.Namespace) -> None:
    from ..slurm.records import find_jobs, read_submissions

    submissions = read_submissions(parsed.jobs)
    if parsed.follow:
        _follow(*find_jobs(submissions, parsed.follow))
    elif parsed.cancel:
        # Find all jobs before cancelling any.
        for submission, ids in [find_jobs(submissions, job) for job in parsed.cancel]:
            _cancel(submission, ids)
    elif parsed.json:
        rows = [
            {**asdict(job), "submission": submission.folder.name, "last_line": last}
            for submission, job, last in job_rows(submissions)
        ]
        print(json.dumps(rows, indent=2))
    elif not submissions:
        print(f"No jobs were submitted: there is no record in {parsed.jobs}.")
    else:
        _show(submissions)


def _cancel(submission: "Submission", ids: Sequence[str]) -> None:
    from ..slurm.scheduler import cancel
    from ..slurm.states import ENDED, job_statuses

    ended = {job.id for job in job_statuses([submission]) if job.state in ENDED}
    running = [job for job in ids if job not in ended]
    if not running:
        print(f"Nothing to cancel: {', '.join(ids)} has ended.")
        return
    cancel(running)
    submission.cancelled += running
    submission.write()
    print(f"Cancelled: {', '.join(running)}")


def job_rows(
    submissions: "Sequence[Submission]",
) -> "list[tuple[Submission, JobStatus, str]]":
    """Every job with its submission and the last line of its log."""
    from ..slurm.states import job_statuses

    owner = {job.id: submission for submission in submissions for job in submission.jobs}
    return [
        (owner[job.id], job, owner[job.id].last_line(job.id, job.state == "failed"))
        for job in job_statuses(submissions)
    ]


def _state(job: "JobStatus") -> str:
    return f"{job.state} ({job.why})" if job.why else job.state


def _show(submissions: "Sequence[Submission]") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None)
    for column in ("job", "submission", "what", "state", "requeued", "last line"):
        table.add_column(column, overflow="fold", no_wrap=column in ("job", "state"))
    for submission, job, last in job_rows(submissions):
        requeued = str(job.restarts or "")
        # Warnings can be long, and their beginning matters most.
        line = textwrap.shorten(last, LONGEST, placeholder=" ...")
        table.add_row(job.id, submission.folder.name, job.name, _state(job), requeued, line)
    Console(highlight=False, markup=False).print(table)
