"""The command line: finds the verb, lets it do its work, and turns errors into exit codes.

Exit codes: 0 done; 2 refused, with one sentence that says why; 130 interrupted; 3 in one of several
processes if another one was lost, or has failed and printed the reason.
"""

import os
import sys
from collections.abc import Sequence

from .. import __version__
from ..carries.kinds import load_named_kinds
from ..runs.launch import FailedElsewhereError, end_with_starter, started_processes
from ..runs.settings import check_flags, flags_of
from . import backbones, experiments, forecast, language, lens, plan, qa, submit, text
from .verb import Parser, Verb, find_verb

# In the order of the help text.
VERBS: tuple[Verb, ...] = (
    *language.VERBS,
    *text.VERBS,
    *lens.VERBS,
    *forecast.VERBS,
    *qa.VERBS,
    *experiments.VERBS,
    *plan.VERBS,
    *submit.VERBS,
    *backbones.VERBS,
)
# Verbs that only group others.
GROUPS = {
    "session": "show what a saved session holds",
    "forecast": "train, score and ask forecasters of time series",
    "qa": "train, score and ask readers that answer questions over long contexts",
}


def main(argv: Sequence[str] | None = None) -> int:
    end_with_starter()
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        show_help(words)
        load_named_kinds(words)
        verb, words = find_verb(VERBS, words)
        parsed = verb.parse(words)
        check_processes(verb)
        result = verb.carry_out(parsed)
        leave_processes()
        # Verbs that start processes return their exit code; the others return their result or None.
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return _fail("interrupted.", 130)
    except FailedElsewhereError:
        return 3
    except (ValueError, OSError, FloatingPointError) as error:
        return _fail(str(error), 2)
    except RuntimeError as error:
        if is_out_of_memory(error):
            message = " ".join(str(error).split()).partition(". ")[0]
            return _fail(f"{message}: give fewer rows or windows, or recompute.", 2)
        if is_lost_process(error):
            return _fail("another process was lost.", 3)
        raise


def show_help(words: Sequence[str]) -> None:
    """Print the list of verbs, or of a group's actions, if that is asked for, and exit."""
    if not words or words[0].startswith("-"):
        parser = Parser(
            prog="holdover",
            description="Recurrent memory for pretrained transformers: what one window held, the next "
            "one knows.",
            allow_abbrev=False,
        )
        parser.add_argument("--version", action="version", version=f"holdover {__version__}")
        actions = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
        for name in dict.fromkeys(verb.name.split()[0] for verb in VERBS):
            about = [verb.help for verb in VERBS if verb.name == name]
            actions.add_parser(name, help=about[0] if about else GROUPS[name])
    elif words[0] in GROUPS and (len(words) == 1 or words[1].startswith("-")):
        group = words[0]
        about = GROUPS[group]
        parser = Parser(
            prog=f"holdover {group}",
            description=f"{about[0].upper()}{about[1:]}.",
            allow_abbrev=False,
        )
        actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
        for verb in VERBS:
            if verb.name.startswith(f"{group} "):
                actions.add_parser(verb.name.split()[1], help=verb.help)
        words = words[1:]
    else:
        return
    check_flags(parser, [word for word in words[:1] if word not in flags_of(parser)])
    parser.parse_args(list(words))


def check_processes(verb: Verb) -> None:
    """Refuse several processes to verbs that would do everything several times."""
    if started_processes() > 1 and not verb.several_processes:
        raise ValueError(
            f"holdover {verb.name} works in one process, and {started_processes()} were started: start "
            "it without a launcher."
        )


def leave_processes() -> None:
    if "holdover.runs.processes" in sys.modules:
        from ..runs.processes import close_talk

        close_talk()


def is_out_of_memory(error: RuntimeError) -> bool:
    # Importing torch takes seconds; an error of torch has imported it already.
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(error, torch.OutOfMemoryError)


def is_lost_process(error: RuntimeError) -> bool:
    if "torch" not in sys.modules:
        return False
    from ..runs.processes import is_lost_peer

    return is_lost_peer(error)


def _fail(message: str, code: int) -> int:
    """Print one line on standard error, with the process's number if there are several."""
    number = os.environ.get("RANK", "0")
    who = f"holdover, process {number}" if started_processes() > 1 and number != "0" else "holdover"
    print(f"{who}: {message}", file=sys.stderr)
    return code
