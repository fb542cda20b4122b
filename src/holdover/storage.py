"""Writing files whole or not at all, and the versions of every format that holdover writes.

* FORMATS lists every format. docs/formats.md describes them and the promises about them.
* JSON files carry their version as "format_version". A file without one has version 0: holdover 0.1.0
  wrote it.
* A newer version is refused before anything else in the file is read.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSION_FIELD = "format_version"


@dataclass(frozen=True)
class Format:
    """A kind of file that holdover reads and writes."""

    name: str
    file: str
    version: int  # the one that is written, and the newest that is read
    first: int = 0  # the one that 0.1.0 wrote


STATE = Format("state", "*.state", version=1, first=1)
SESSION = Format("session", "*.hold", version=1, first=1)
TOKENS = Format("token cache", "about.json", version=3, first=3)
MODEL = Format("recurrent model", "config.json", version=1)
ADDED = Format("added weights", "holdover_config.json", version=1)
RUN_DESCRIPTION = Format("run", "holdover_run.json", version=1)
CHECKPOINT = Format("checkpoint", "progress.json", version=1)
READER = Format("reader", "holdover_reader.json", version=1)
FORECASTER = Format("forecaster", "holdover_series.json", version=1)
EVALUATION = Format("evaluation", "eval.json", version=1)
EXPERIMENT = Format("experiment record", "NAME.json", version=1)
FORMATS = (
    *(STATE, SESSION, TOKENS, MODEL, ADDED, RUN_DESCRIPTION, CHECKPOINT),
    *(READER, FORECASTER, EVALUATION, EXPERIMENT),
)


class NewerFormatError(ValueError):
    """A newer holdover wrote this file."""


def with_version(form: Format, content: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a JSON file, with its version first."""
    return {VERSION_FIELD: form.version, **content}


def check_version(form: Format, version: Any, path: object) -> None:
    """Refuse a version that this holdover does not read."""
    if type(version) is not int or version < form.first:
        raise ValueError(
            f"{path} has the {VERSION_FIELD} {version!r}: a whole number from {form.first} to "
            f"{form.version} was expected."
        )
    if version > form.version:
        raise NewerFormatError(
            f"{path} was written by a newer holdover (format {version}; this one reads up to "
            f"{form.version}): upgrade holdover."
        )


def check_content(
    form: Format, content: Any, path: object, known: Iterable[str] | None = None
) -> dict[str, Any]:
    """The fields of a JSON file, except the version; `known` are all the fields it may have."""
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    check_version(form, content.get(VERSION_FIELD, 0), path)
    fields = {name: value for name, value in content.items() if name != VERSION_FIELD}
    unknown = sorted(set(fields) - set(known)) if known is not None else []
    if unknown:
        raise ValueError(
            f"{path} has the field {unknown[0]!r}, which a {form.name} of format {form.version} "
            "does not have"
        )
    return fields


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file as a whole, or leave it as it was, even if the machine stops half-way."""
    if path.parent != Path() and not path.parent.is_dir():
        raise FileNotFoundError(f"Cannot write {path}: the folder {path.parent} does not exist.")
    if path.is_dir():
        raise IsADirectoryError(f"Cannot write {path}: it is a folder; give the name of a file.")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
