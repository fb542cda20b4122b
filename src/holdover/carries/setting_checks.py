"""Checks that settings classes share. Nothing here imports torch."""

from typing import Any, Literal, get_args, get_origin, get_type_hints


def at_least(name: str, value: Any, least: int, or_else: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        alternative = f" {or_else}" if or_else else ""
        raise ValueError(
            f"{name}={value!r} must be a whole number of at least {least}{alternative}."
        )


def check_choices(settings: Any) -> None:
    """Refuse a value that is not among the choices of its field's Literal type."""
    for name, annotation in get_type_hints(type(settings)).items():
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        if choices and getattr(settings, name) not in choices:
            raise ValueError(
                f"RecurrenceConfig({name}={getattr(settings, name)!r}) is not a choice; "
                f"use one of {', '.join(map(repr, choices))}."
            )


def as_tuples(settings: Any, *names: str) -> None:
    """JSON has lists; settings are compared and hashed, so they hold tuples."""
    for name in names:
        object.__setattr__(settings, name, tuple(getattr(settings, name)))
