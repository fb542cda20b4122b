"""Imports of version 0.1.0 keep working, with a warning."""

import subprocess
import sys
from importlib import import_module

import pytest

import holdover
from holdover.deprecated_modules import MOVED

OLD_NAMES = {
    "holdover.train": "TrainOptions train QAOptions train_reader ForecastOptions train_forecaster",
    "holdover.evaluate": "EvalOptions evaluate lens score Scores measure",
    "holdover.experiment": "Experiment Layout Run Table Value Work log_of of_evaluation",
    "holdover.forecast": "ForecastOptions ForecastEvalOptions predict open_forecaster",
    "holdover.qa": "QAOptions QAEvalOptions ask open_reader Reader train_reader",
    "holdover.plan": "PlanOptions plan show_plan check",
    "holdover.evaluate.harness": "HoldoverLM",
}


@pytest.mark.parametrize("module", MOVED)
def test_an_old_module_warns_and_gives_its_names(module):
    if module == "holdover.evaluate.harness":
        pytest.importorskip("lm_eval")
    for name in (module, module.rpartition(".")[0]):
        if name != "holdover":
            sys.modules.pop(name, None)
    with pytest.warns(DeprecationWarning, match="moved to holdover"):
        old = import_module(module)
    for name in OLD_NAMES[module].split():
        assert getattr(old, name).__module__.startswith("holdover."), name
    with pytest.raises(AttributeError, match="no_such_name"):
        old.no_such_name  # noqa: B018


def test_wanted_is_output_request():
    with pytest.warns(DeprecationWarning, match="OutputRequest"):
        assert holdover.Wanted is holdover.OutputRequest


def test_an_old_module_runs_as_a_command():
    pytest.importorskip("lm_eval")
    command = [sys.executable, "-m", "holdover.evaluate.harness", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--tasks" in done.stdout, done.stderr
