"""Every package that the source imports is declared, and every declared package is used."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

from scripts import ROOT

SOURCE = ROOT / "src" / "holdover"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Packages whose import has another name than the package.
IMPORTED_AS = {"yaml": "pyyaml"}
# Modules that import an optional package at their top. The rest of the library imports such a module
# only when it needs the package.
NEED_THEIR_EXTRA = {"ops/relative_triton.py": "triton", "ops/scan_triton.py": "triton"}
# Extras that are no part of the library.
FOR_TESTS = ("dev", "real-weights")
# Declared packages that the source never imports, and what needs them.
NOT_IMPORTED = {
    "tensorboard": "accelerate imports it for --report-to tensorboard",
    "trackio": "accelerate imports it for --report-to trackio",
    "wandb": "accelerate imports it for --report-to wandb",
}


def package(name: str) -> str:
    """A distribution's name in one spelling: scikit-learn for scikit_learn>=1."""
    return re.match(r"[\w.-]+", name)[0].lower().replace("_", "-")


REQUIRED = {package(line) for line in PROJECT["dependencies"]}
OPTIONAL = {
    package(line)
    for extra, lines in PROJECT["optional-dependencies"].items()
    if extra not in FOR_TESTS
    for line in lines
}


def imported(path: Path) -> list[tuple[str, bool]]:
    """The packages that a file imports, and whether it does so at its top."""
    tree = ast.parse(path.read_text())
    # What only a type checker reads is not imported.
    checked = [
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    ]
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "import_module":
            modules = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
        else:
            continue
        for module in modules:
            first = module.partition(".")[0]
            if first not in sys.stdlib_module_names and first != "holdover" and node not in checked:
                names.append((package(IMPORTED_AS.get(first, first)), node in tree.body))
    return names


IMPORTS = {path: imported(path) for path in sorted(SOURCE.rglob("*.py"))}


@pytest.mark.parametrize("path", IMPORTS, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_are_declared(path):
    allowed = NEED_THEIR_EXTRA.get(str(path.relative_to(SOURCE)))
    for name, at_the_top in IMPORTS[path]:
        assert name in REQUIRED | OPTIONAL, f"declare {name} in pyproject.toml"
        if at_the_top and name != allowed:
            assert name in REQUIRED, (
                f"{name} is optional: import it inside the function that uses it"
            )


def test_declared_packages_are_used():
    names = {name for found in IMPORTS.values() for name, _ in found}
    assert names | set(NOT_IMPORTED) == REQUIRED | OPTIONAL
    assert not names & set(NOT_IMPORTED)


def test_a_package_is_declared_once():
    assert not REQUIRED & OPTIONAL
    for name, lines in PROJECT["optional-dependencies"].items():
        assert len(lines) == len({package(line) for line in lines}), name


def test_tested_versions_are_pinned():
    pinned = {
        package(line)
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line[0] != "#"
    }
    development = {package(line) for line in PROJECT["optional-dependencies"]["dev"]}
    assert REQUIRED | development <= pinned
