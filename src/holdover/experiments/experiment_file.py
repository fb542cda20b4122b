"""An experiment file: Python that defines EXPERIMENT."""

import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from .definition import SCALES, Experiment


class _AsItStands(SourceFileLoader):
    """Python keeps compiled files, and tells a changed one by its size and the second of its change."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _defines(path: Path) -> bool:
    """Whether a file is an experiment, without running it: what experiments share lies beside them."""
    try:
        return re.search(r"^EXPERIMENT\b", path.read_text(encoding="utf-8"), re.M) is not None
    except (OSError, UnicodeDecodeError):
        return False


def open_experiment(path: Path) -> tuple[str, Experiment]:
    """Its name, which is the file's, and what it defines."""
    if not path.is_file():
        near = [str(found) for found in sorted(path.parent.glob("*.py")) if _defines(found)]
        hint = f"there is {', '.join(near)}" if near else "give the path of a Python file"
        raise FileNotFoundError(f"There is no experiment at {path}: {hint}.")
    if path.suffix != ".py":
        raise ValueError(f"{path} is not Python: an experiment's file ends with .py.")
    loader = _AsItStands(f"experiment_{path.stem}", str(path))
    module = ModuleType(loader.name)
    module.__file__ = str(path)
    # Dataclasses look their module up; files beside it can be imported as if it were run.
    sys.modules[loader.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        loader.exec_module(module)
    # Whatever is wrong in a file of somebody's own.
    except Exception as error:
        raise ValueError(
            f"{path} cannot be read ({type(error).__name__}: {error}): it has to run as Python alone."
        ) from error
    finally:
        sys.path.remove(str(path.parent.resolve()))
    found = getattr(module, "EXPERIMENT", None)
    if not isinstance(found, Experiment):
        raise ValueError(
            f"{path} defines no experiment: give it EXPERIMENT = holdover.experiments.Experiment(...)."
        )
    unknown = set(found.seeds) - set(SCALES)
    if unknown:
        raise ValueError(f"{path} has seeds for {', '.join(unknown)}: scales are {SCALES}.")
    return path.stem, found
