"""Scripts as modules, and the folders of the tests."""

import importlib.util
import sys
from pathlib import Path

SUPPORT = Path(__file__).parent
ROOT = SUPPORT.parents[1]


def script(path: str):
    """A file as a module. As when Python runs it, it can import its neighbours."""
    file = ROOT / path
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module
