"""An experiment file: Python that defines EXPERIMENT."""

import importlib.util
import sys
from pathlib import Path

from .definition import SCALES, Experiment


def open_experiment(path: Path) -> tuple[str, Experiment]:
    """Its name, which is the file's, and what it defines."""
    if not path.is_file():
        near = sorted(str(found) for found in path.parent.glob("*.py"))
        hint = f"there is {', '.join(near)}" if near else "give the path of a Python file"
        raise FileNotFoundError(f"There is no experiment at {path}: {hint}.")
    spec = importlib.util.spec_from_file_location(f"experiment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not Python: an experiment's file ends with .py.")
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up; files beside it can be imported as if it were run.
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
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
            f"{path} defines no experiment: give it EXPERIMENT = holdover.experiment.Experiment(...)."
        )
    unknown = set(found.seeds) - set(SCALES)
    if unknown:
        raise ValueError(f"{path} has seeds for {', '.join(unknown)}: scales are {SCALES}.")
    return path.stem, found
