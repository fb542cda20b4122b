"""Files that are replaced as a whole or left as they were."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Replace the file as a whole or leave it as it was, also when the machine stops half-way."""
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
