"""The verbs submit and jobs: commands as jobs of a SLURM cluster."""

import argparse
import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TypeAlias

from rich.console import Console
from rich.table import Table

from ..runs.settings import parse_words
from ..slurm.follow import follow
from ..slurm.records import Submission, find_jobs, read_submissions
from ..slurm.request import ParsedRequest, Request, describe, submit
from ..slurm.scheduler import cancel
from ..slurm.states import ENDED, JobStatus, job_statuses

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
JOBS = Path("runs/jobs")
# Characters of what a job said last.
LONGEST = 120
EXAMPLE = (
    "holdover submit --slurm partition=gpu gpus-per-node=1 time=4:00:00 -- train --config run.yaml"
)


def split_command(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of submit, and the command that stands behind its --."""
    words = list(words)
    if words[:1] != ["submit"] or {"-h", "--help"} & set(words):
        return words, []
    place = words.index("--") if "--" in words else len(words)
    if not words[place + 1 :]:
        raise ValueError(f"What to run is missing: write it behind --, as in: {EXAMPLE}.")
    return words[:place], words[place + 1 :]


def asked_settings(parser: argparse.ArgumentParser, words: Sequence[str]) -> ParsedRequest:
    """What a command line asks for, without carrying it out."""
    parsed = parse_words(parser, words)
    return ParsedRequest(parsed.asked(parsed), getattr(parsed, "experiment", None))


def add_submit(verbs: Verbs, read: Callable[[Sequence[str]], ParsedRequest]) -> None:
    verb = verbs.add_parser(
        "submit",
        help="send a command to a SLURM cluster as a job, or as many",
        usage="holdover submit [--slurm KEY=VALUE ...] [--sweep KEY=VALUE,...] [flags] -- COMMAND ...",
        description="Send train, eval, run, qa train, qa eval, forecast train or forecast eval to a "
        "SLURM cluster. Before its time limit, or when it has to make room, a job saves, is queued "
        "again and continues exactly. Of an experiment (run), every run without a record is a job of "
        "its own.",
        epilog=f"As in: {EXAMPLE}",
        allow_abbrev=False,
    )
    verb.add_argument(
        "--slurm",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="options of sbatch: partition, account, qos, nodes, gpus-per-node, cpus-per-task, mem, "
        "time (default: 60 minutes), signal-delay-s (seconds of warning before the time limit, "
        "default: 90), setup (a shell line; may be repeated) and all others that submitit knows; "
        "extra.KEY=VALUE for those it does not",
    )
    verb.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="several values of a setting, a job each; may be repeated, for all combinations. Every job "
        "has a folder inside --output. Values that hold commas are separated by semicolons",
    )
    verb.add_argument(
        "--processes-per-node",
        type=int,
        metavar="N",
        help="processes that train, started by torchrun (default: one a GPU)",
    )
    verb.add_argument(
        "--requeues",
        type=int,
        default=20,
        metavar="N",
        help="how many time limits a job may meet before it is not queued again (default: 20); being "
        "preempted is not counted",
    )
    verb.add_argument(
        "--follow", action="store_true", help="show what the jobs write until they have ended"
    )
    verb.add_argument(
        "--dry-run", action="store_true", help="print the script for sbatch, and send nothing"
    )
    _add_folder(verb)
    verb.set_defaults(run=lambda parsed: run_submit(parsed, read), verb=verb)


def _add_folder(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--jobs",
        type=Path,
        default=JOBS,
        metavar="DIR",
        help=f"folder of submissions, their scripts and logs (default: {JOBS})",
    )


def run_submit(parsed: argparse.Namespace, read: Callable[[Sequence[str]], ParsedRequest]) -> None:
    request = Request(
        parsed.command,
        parsed.slurm,
        parsed.sweep,
        parsed.jobs,
        parsed.processes_per_node,
        parsed.requeues,
    )
    if parsed.dry_run:
        print(describe(request, read))
        return
    submission = submit(request, read)
    for job in submission.jobs:
        print(f"Job {job.id}: {job.name}")
    print(f"Logs: {submission.folder}   states: holdover jobs", flush=True)
    if parsed.follow:
        _follow(submission, [job.id for job in submission.jobs])


def _follow(submission: Submission, ids: Sequence[str]) -> None:
    try:
        ended = follow(submission, ids, lambda line: print(line, flush=True))
    except KeyboardInterrupt:
        going = ", ".join(ids)
        print(
            f"No longer following; the jobs go on ({going}): holdover jobs --follow ID follows again, "
            "holdover jobs --cancel ID ends one.",
            file=sys.stderr,
        )
        return
    bad = [f"{one.id} {_told(one)}" for one in ended if one.state != "done"]
    if bad:
        raise ValueError(f"Not all jobs came to their end: {'; '.join(bad)}.")


def add_jobs(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "jobs",
        help="show, follow or cancel what was submitted",
        description="Show every job that was submitted from here: queued, running, done, failed, "
        "cancelled, or lost where SLURM knows it no more; with the exit code and what it said last.",
        allow_abbrev=False,
    )
    what = verb.add_mutually_exclusive_group()
    what.add_argument(
        "--cancel", nargs="+", default=[], metavar="ID", help="end jobs, or all of an array"
    )
    what.add_argument("--follow", metavar="ID", help="show what a job or an array writes")
    what.add_argument("--json", action="store_true", help="as JSON")
    _add_folder(verb)
    verb.set_defaults(run=run_jobs, verb=verb)


def run_jobs(parsed: argparse.Namespace) -> None:
    submissions = read_submissions(parsed.jobs)
    if parsed.follow:
        _follow(*find_jobs(submissions, parsed.follow))
    elif parsed.cancel:
        # All are looked up before any is ended.
        for submission, ids in [find_jobs(submissions, asked) for asked in parsed.cancel]:
            _cancel(submission, ids)
    elif parsed.json:
        shown = [
            {**asdict(one), "submission": submission.folder.name, "last_line": last}
            for submission, one, last in _shown(submissions)
        ]
        print(json.dumps(shown, indent=2))
    elif not submissions:
        print(f"Nothing was submitted: there is no record in {parsed.jobs}.")
    else:
        _show(submissions)


def _cancel(submission: Submission, ids: Sequence[str]) -> None:
    ended = {one.id for one in job_statuses([submission]) if one.state in ENDED}
    going = [job for job in ids if job not in ended]
    if not going:
        print(f"Nothing to cancel: {', '.join(ids)} has ended.")
        return
    cancel(going)
    submission.cancelled += going
    submission.write()
    print(f"Cancelled: {', '.join(going)}")


def _shown(submissions: Sequence[Submission]) -> list[tuple[Submission, JobStatus, str]]:
    owner = {job.id: submission for submission in submissions for job in submission.jobs}
    return [
        (owner[one.id], one, owner[one.id].last_line(one.id, one.state == "failed"))
        for one in job_statuses(submissions)
    ]


def _told(one: JobStatus) -> str:
    return f"{one.state} ({one.why})" if one.why else one.state


def _show(submissions: Sequence[Submission]) -> None:
    table = Table(box=None)
    for column in ("job", "submission", "what", "state", "requeued", "said last"):
        table.add_column(column, overflow="fold", no_wrap=column in ("job", "state"))
    for submission, one, last in _shown(submissions):
        requeued = str(one.restarts or "")
        # Warnings can be long, and what matters stands at their beginning.
        said = textwrap.shorten(last, LONGEST, placeholder=" ...")
        table.add_row(one.id, submission.folder.name, one.name, _told(one), requeued, said)
    Console(highlight=False, markup=False).print(table)
