"""Public names of a package that are imported when they are first used."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    modules: each public module (as `.module`, relative to the package) with the names it defines,
    separated by spaces.
    """
    home = {name: module for module, names in modules.items() for name in names.split()}

    def get_attribute(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home[name], package), name)

    public = sorted(home)
    return get_attribute, lambda: public, public
