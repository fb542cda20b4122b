"""Triton kernels on the CPU: its interpreter runs them program by program, with numpy.

Triton reads TRITON_INTERPRET when it is imported, and kernels are then made for the interpreter, so that
such tests need a process of their own. In a test file, functions named interpreted_* are run there by

    def test_as_interpreted():
        run_interpreted(__file__)

A word of pytest's -k chooses among them.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch


def run_interpreted(file: str, chosen: str = "interpreted") -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: its kernels cannot be interpreted")
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", file, "-k", chosen]
    run = subprocess.run(
        [*command, "-o", "python_functions=interpreted_*"],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]


def mend_interpreter() -> None:
    """What the interpreter of triton 3.6 gets wrong."""
    from triton import language
    from triton.runtime import interpreter

    builder_class = interpreter.InterpreterBuilder
    patch, dot, cast = (
        interpreter._patch_lang_tensor,
        builder_class.create_dot,
        builder_class.cast_impl,
    )

    def patched(tensor, scope) -> None:
        # For a run-time bound of a loop it calls int() on an array, which numpy 2.4 refuses.
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def widened(builder, handle):
        if handle.dtype.scalar != language.bfloat16:
            return handle
        return builder.cast_impl(handle, language.float32)

    def dot_of_numbers(builder, a, b, *rest):
        # It multiplies the bits of bfloat16 as whole numbers.
        return dot(builder, widened(builder, a), widened(builder, b), *rest)

    def rounded(builder, handle, dtype):
        # To bfloat16 it cuts bits off, where a GPU rounds.
        if (handle.dtype.scalar, dtype.scalar) != (language.float32, language.bfloat16):
            return cast(builder, handle, dtype)
        bits = torch.tensor(handle.data).bfloat16().view(torch.uint16).numpy()
        return interpreter.TensorHandle(bits, language.bfloat16)

    interpreter._patch_lang_tensor = patched
    builder_class.create_dot = dot_of_numbers
    builder_class.cast_impl = rounded


def hasten_interpreter() -> None:
    """What it does again and again, done once: of its time almost a half."""
    from triton import language
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    seen: set[int] = set()

    def patched_once(function):
        # A kernel begins, and what it calls is not replaced yet; functions that it calls find it so.
        if language.core.is_builtin(language.load):
            seen.clear()
        if id(function.__globals__) in seen:
            return interpreter._LangPatchScope()
        seen.add(id(function.__globals__))
        return patch(function)

    def refuse_overflow(semantic, left, right, operation):
        # As it is there, where every comparison is an operation that is interpreted.
        kind = left.type.scalar
        if kind.int_bitwidth >= 64 or not semantic.builder.options.sanitize_overflow:
            return
        combine = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[operation.__name__]
        wide = combine(left.handle.data.astype(np.int64), right.handle.data.astype(np.int64))
        inside = (wide >= kind.get_int_min_value()) & (wide <= kind.get_int_max_value())
        assert inside.all(), f"int{kind.int_bitwidth} overflow in {operation.__name__}"

    interpreter._patch_lang = patched_once
    TritonSemantic.binary_op_sanitize_overflow_impl = refuse_overflow


if os.environ.get("TRITON_INTERPRET") == "1":
    mend_interpreter()
    hasten_interpreter()
