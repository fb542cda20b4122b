"""The sections of a report: every experiment's layout and its records, and nothing else."""

from collections.abc import Sequence
from pathlib import Path

from ..definition import SCALES, Experiment
from ..experiment_file import LAYOUT, from_json
from ..options import ReportOptions, did_you_mean
from ..records import KIND, read_json, read_records
from .section import Section


def gather(options: ReportOptions) -> list[Section]:
    folders = sorted(options.results.glob("*/*"), key=_by_name_and_scale)
    recorded = [folder for folder in folders if _holds_records(folder)]
    _check_experiments(options, recorded)
    chosen = [folder for folder in recorded if _is_requested(folder, options)]
    if not chosen:
        raise ValueError(
            f"There are no records{_at_scales(options)} in {options.results} (the scale smoke is left "
            "out unless --scales names it): make some with holdover run experiments/NAME.py --scale "
            "small."
        )
    return sorted((_section(folder, options) for folder in chosen), key=_order)


def _holds_records(folder: Path) -> bool:
    others = (path for path in folder.glob("*.json") if path.name != LAYOUT)
    if (folder / LAYOUT).exists():
        return next(others, None) is not None
    # Any folder may hold JSON.
    return any(_is_record(path) for path in others)


def _is_record(path: Path) -> bool:
    try:
        return read_json(path).get("record") == KIND
    except ValueError:
        return False


def _is_requested(folder: Path, options: ReportOptions) -> bool:
    name, scale = folder.parent.name, folder.name
    if options.experiments and name not in options.experiments:
        return False
    return scale in options.scales if options.scales else scale != "smoke"


def _check_experiments(options: ReportOptions, recorded: Sequence[Path]) -> None:
    """An experiment that was named is never left out silently."""
    names = sorted({folder.parent.name for folder in recorded})
    for name in options.experiments if names else ():
        folders = [folder for folder in recorded if folder.parent.name == name]
        if not folders:
            raise ValueError(
                f"There are no records of {name} in {options.results}: there are records of "
                f"{', '.join(names)}{did_you_mean(name, names)}"
            )
        if not any(_is_requested(folder, options) for folder in folders):
            scales = ",".join(folder.name for folder in folders)
            raise ValueError(
                f"There are no records of {name}{_at_scales(options)} in {options.results}: give "
                f"--scales {scales}, which has records."
            )


def _at_scales(options: ReportOptions) -> str:
    return f" at the scale {' or '.join(options.scales)}" if options.scales else ""


def _section(folder: Path, options: ReportOptions) -> Section:
    name, scale, path = folder.parent.name, folder.name, folder / LAYOUT
    if scale not in SCALES:
        raise ValueError(
            f"{folder} holds records, but {scale} is not a scale ({', '.join(SCALES)}): move them to "
            "another folder."
        )
    how = (
        f"holdover run FILE --scale {scale} --results {options.results} --list writes it, where FILE "
        f"is the experiment's file {name}.py"
    )
    if not path.exists():
        raise ValueError(
            f"{folder} holds records without {LAYOUT}, which says what they show: {how}."
        )
    about = read_json(path)
    try:
        layout = from_json(about)
        for key in ("title", "question", "source"):
            about[key]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} does not say what its records show ({type(error).__name__}: {error}): delete it; "
            f"{how}."
        ) from error
    return Section(name, scale, about, layout, read_records(folder))


def _by_name_and_scale(folder: Path) -> tuple[str, int]:
    return folder.parent.name, SCALES.index(folder.name) if folder.name in SCALES else len(SCALES)


def _order(section: Section) -> tuple[int, str, int]:
    """In the report, lowest `place` first."""
    return section.about.get("place", Experiment.place), section.name, SCALES.index(section.scale)
