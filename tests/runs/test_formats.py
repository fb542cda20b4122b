"""Files of 0.1.0 are read, and files of a newer holdover are refused with that reason."""

import json
import re
import shutil
from pathlib import Path

import pytest

import holdover
from holdover.experiments.records import read_records
from holdover.forecasting.folder import open_forecaster
from holdover.forecasting.plotting import plot_forecasts
from holdover.language.plotting import compare
from holdover.questions.folder import open_reader
from holdover.runs.models import open_model, read_run, recurrence_of
from holdover.storage import FORMATS, VERSION_FIELD, check_version
from holdover.training.checkpoint import Checkpoints

ROOT = Path(__file__).parent.parent
FILES = ROOT / "legacy" / "v0_1_0"
NEWER = r"was written by a newer holdover \(format 2; this one reads up to 1\): upgrade holdover"
RECORDS = "experiment/records/small_experiment/small"


def resume(folder):
    return Checkpoints(folder, 1).load(folder / "checkpoint-30")


def open_added(folder):
    return holdover.RecurrentModel.from_pretrained(
        folder / "added", base_model=str(folder / "base")
    )


# What is opened, the file in it that has a version, and how it is opened.
OPENED = {
    "recurrent model": ("models/memory", "config.json", holdover.RecurrentModel.from_pretrained),
    "recurrent model by name": ("models/memory", "config.json", lambda f: open_model(str(f))),
    "its settings": ("models/memory", "config.json", lambda f: recurrence_of(str(f))),
    "added weights": ("adapter", "added/holdover_config.json", open_added),
    "run": ("train/pooled", "holdover_run.json", lambda f: read_run(f / "holdover_run.json")),
    "checkpoint": ("train/pooled", "checkpoint-30/progress.json", resume),
    "reader": ("qa/run/best", "holdover_reader.json", open_reader),
    "forecaster": ("forecast/seasonal", "holdover_series.json", open_forecaster),
    "evaluation": ("evaluation/pooled", "eval.json", lambda f: compare([f])),
    "experiment record": (RECORDS, "plain-seed0.json", read_records),
}
# Formats whose readers know every field.
STRICT = ("added weights", "checkpoint", "reader", "forecaster")


@pytest.fixture
def copied(request, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree((FILES / OPENED[request.param][0]).resolve(), folder, symlinks=True)
    return request.param, folder


def change(copied, **fields):
    name, folder = copied
    path = folder / OPENED[name][1]
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def opened(copied):
    name, folder = copied
    return OPENED[name][2](folder)


@pytest.mark.parametrize("copied", OPENED, indirect=True)
def test_versions(copied):
    content = json.loads((copied[1] / OPENED[copied[0]][1]).read_text())
    assert VERSION_FIELD not in content
    opened(copied)
    for version in (0, 1):
        change(copied, **{VERSION_FIELD: version})
        opened(copied)
    # Whatever else a newer file has, its version is the reason.
    change(copied, **{VERSION_FIELD: 2, "new_field": 1})
    with pytest.raises(ValueError, match=NEWER) as refused:
        opened(copied)
    assert "damaged" not in str(refused.value)
    for wrong in ("1", -1, 1.5, None, True):
        change(copied, **{VERSION_FIELD: wrong})
        with pytest.raises(ValueError, match=f"has the {VERSION_FIELD} {re.escape(repr(wrong))}"):
            opened(copied)


@pytest.mark.parametrize("copied", STRICT, indirect=True)
def test_an_unknown_field_is_named(copied):
    change(copied, surprise=1)
    with pytest.raises(
        ValueError, match="has the field 'surprise', which a .* of format 1 does not"
    ):
        opened(copied)


@pytest.mark.parametrize("copied", ["recurrent model by name"], indirect=True)
def test_an_unknown_recurrence_setting_is_named(copied):
    recurrence = json.loads((copied[1] / "config.json").read_text())["recurrence"]
    change(copied, recurrence={**recurrence, "surprise": 1})
    with pytest.raises(ValueError, match="'surprise' is not a field"):
        opened(copied)


def test_a_saved_model_has_its_version(tmp_path):
    model = open_model(str(FILES / "models" / "memory"))
    model.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    assert content[VERSION_FIELD] == 1
    # As 0.1.0 expects it: the version is not a setting of the recurrence.
    assert VERSION_FIELD not in content["recurrence"]


def test_the_newest_forecast_evaluation_is_refused_too(tmp_path):
    record = json.loads((FILES / "forecast" / "evaluation" / "forecast_eval.json").read_text())
    path = tmp_path / "forecast_eval.json"
    path.write_text(json.dumps(record | {VERSION_FIELD: 2}))
    with pytest.raises(ValueError, match=NEWER):
        plot_forecasts([tmp_path], tmp_path / "plots")


def test_the_page_of_formats_lists_them_all():
    rows = re.findall(
        r"^\| ([\w ]+) \| `([^`]+)`.*\| (\d+) \| (\d+) \|$",
        (ROOT.parent / "docs" / "formats.md").read_text(),
        re.M,
    )
    assert rows == [(f.name, f.file, str(f.version), str(f.first)) for f in FORMATS]
    for form in FORMATS:
        for version in range(form.first, form.version + 1):
            check_version(form, version, "a file")
