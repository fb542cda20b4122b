"""Imports of version 0.1.0 that moved. They keep working for one version, with a warning."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

# Old module -> where its names are now: name -> "module" or "module:new name", "*" for all others.
MOVED: dict[str, dict[str, str]] = {
    "holdover.evaluate": {
        "EvalOptions": "holdover.language",
        "evaluate": "holdover.language",
        "measure": "holdover.language",
        "Lens": "holdover.evaluation",
        "lens": "holdover.evaluation",
        "Scores": "holdover.evaluation",
        "score": "holdover.evaluation",
    },
    "holdover.evaluate.harness": {"*": "holdover.language.lm_eval"},
    "holdover.experiment": {
        "*": "holdover.experiments",
        "Work": "holdover.experiments:RunContext",
    },
    "holdover.forecast": {"*": "holdover.forecasting"},
    "holdover.plan": {"*": "holdover.planning"},
    "holdover.qa": {
        "*": "holdover.questions",
        "Asked": "holdover.questions:LocatedAnswer",
    },
    "holdover.train": {
        "LoopOptions": "holdover.training",
        "TrainOptions": "holdover.language",
        "train": "holdover.language",
        "QAOptions": "holdover.questions",
        "train_reader": "holdover.questions",
        "ForecastOptions": "holdover.forecasting",
        "train_forecaster": "holdover.forecasting",
    },
}


class MovedModule(ModuleType):
    """An old module: looks its names up where they are now."""

    def __getattr__(self, name: str) -> Any:
        names = MOVED[self.__name__]
        target = names.get(name, names.get("*"))
        if target is None or name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, _, new_name = target.partition(":")
        return getattr(import_module(module), new_name or name)


class MovedModuleFinder(MetaPathFinder, Loader):
    """Finds the old modules first: an empty folder left by an upgrade must not hide them."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOVED:
            return None
        return ModuleSpec(fullname, self, is_package=fullname != "holdover.evaluate.harness")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return MovedModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        modules = (target.partition(":")[0] for target in MOVED[module.__name__].values())
        warnings.warn(
            f"{module.__name__} moved to {', '.join(dict.fromkeys(modules))}; the old name goes away "
            "in the next version.",
            DeprecationWarning,
            stacklevel=2,
        )

    def get_code(self, fullname: str) -> CodeType:
        """For `python -m` with an old name."""
        target = MOVED[fullname]["*"]
        run = f"import runpy; runpy.run_module({target!r}, run_name='__main__', alter_sys=True)"
        return compile(run, fullname, "exec")


def install() -> None:
    if not any(isinstance(finder, MovedModuleFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, MovedModuleFinder())
