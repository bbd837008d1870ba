"""Layouts, schedules and calls that are wrong: the exact text a user sees (SPEC D, L4, X10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile

Layout = metile.ThreadLayout
PERMUTATION = "[ThreadLayout] bit_order must be a permutation of 0..4, got"
EACH_BIT = "\nhint: name each of the 5 slot bits exactly once"
REGISTERS = (
    "[ThreadLayout] elements_per_thread must be 1, 2, 4, 8, 16 or 32, got {}\n"
    "hint: a thread holds a power of two of elements, 32 at most"
)
MASK = (
    "[ThreadLayout] xor_mask must be in 0..31 for 32 elements, got {}\n"
    "hint: the mask flips bits of the element index; it has no bits above them"
)
THREADS = "[ThreadLayout] a layout has 32 to 1024 threads, got "
LAYOUTS: dict[str, tuple[Callable[[], object], str]] = {
    "too few threads": (
        lambda: Layout((0, 1, 2)),
        f"{THREADS}8 (8 elements, 1 per thread)\n"
        "hint: use at least 32 elements, or fewer per thread",
    ),
    "too few threads of several elements": (
        lambda: Layout((0, 1, 2, 3, 4, 5), elements_per_thread=4),
        f"{THREADS}16 (64 elements, 4 per thread)\n"
        "hint: use at least 128 elements, or fewer per thread",
    ),
    "too many threads": (
        lambda: Layout(tuple(range(11))),
        f"{THREADS}2048 (2048 elements, 1 per thread)\nhint: use elements_per_thread=2 or more",
    ),
    "too many elements": (
        lambda: Layout(tuple(range(16)), elements_per_thread=32),
        "[ThreadLayout] a tile has at most 32768 elements (15 bits), got a bit_order of 16 bits\n"
        "hint: cover a larger range with more programs (a larger grid)",
    ),
    "elements per thread no power of two": (
        lambda: Layout(tuple(range(10)), elements_per_thread=3),
        REGISTERS.format(3),
    ),
    "too many elements per thread": (
        lambda: Layout(tuple(range(12)), elements_per_thread=64),
        REGISTERS.format(64),
    ),
    "no elements per thread": (
        lambda: Layout(tuple(range(5)), elements_per_thread=0),
        REGISTERS.format(0),
    ),
    "a bit missing": (
        lambda: Layout((0, 1, 2, 3, 5)),
        f"{PERMUTATION} (0, 1, 2, 3, 5): 4 missing, 5 out of range{EACH_BIT}",
    ),
    "a bit repeated": (
        lambda: Layout((0, 1, 2, 3, 3)),
        f"{PERMUTATION} (0, 1, 2, 3, 3): 4 missing, 3 repeated{EACH_BIT}",
    ),
    "a negative bit": (
        lambda: Layout((0, 1, 2, 3, -1)),
        f"{PERMUTATION} (0, 1, 2, 3, -1): 4 missing, -1 out of range{EACH_BIT}",
    ),
    "a float bit": (
        lambda: Layout((0, 1, 2, 3, 4.0)),  # type: ignore[arg-type]
        "[ThreadLayout] bit_order[4] must be an integer, got 4.0",
    ),
    "a mask too large": (lambda: Layout((0, 1, 2, 3, 4), xor_mask=32), MASK.format(32)),
    "a negative mask": (lambda: Layout((0, 1, 2, 3, 4), xor_mask=-1), MASK.format(-1)),
    "size no power of two": (
        lambda: Layout.identity(48),
        "[ThreadLayout.identity] size must be a power of two, got 48\n"
        "hint: use 64 and let bounds or a mask drop what is not needed",
    ),
    "a number for the bits": (
        lambda: Layout(5),  # type: ignore[arg-type]
        "[ThreadLayout] bit_order must be a sequence of integers, got 5\n"
        "hint: ThreadLayout((0, 1, 2, 3, 4)) is the identity on 32 threads; for a size, use "
        "ThreadLayout.identity(32)",
    ),
    "an element outside": (
        lambda: Layout.identity(32).owner(32),
        "[ThreadLayout.owner] index must be in 0..31, got 32",
    ),
}


@pytest.mark.parametrize(("make", "message"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_illegal_layouts(make: Callable[[], object], message: str) -> None:
    """SPEC L4: the value and the rule."""
    with pytest.raises(metile.LayoutError) as caught:
        make()
    assert str(caught.value) == message


SCHEDULES: dict[str, tuple[dict[str, Any], str]] = {
    "width": ({"vector_width": 2}, "vector_width=2): expected one of None, 1, 4"),
    "width of True": ({"vector_width": True}, "vector_width=True): expected one of None, 1, 4"),
    "staging": (
        {"staging": "shared"},
        "staging='shared'): expected one of None, 'threadgroup', 'device'",
    ),
    "backend": ({"backend": "cpu"}, "backend='cpu'): expected one of None, 'simdgroup'"),
    "buffers": ({"double_buffer": 1}, "double_buffer=1): expected one of False, True"),
    "conversion": (
        {"conversion": "fast"},
        "conversion='fast'): expected one of 'auto', 'shuffle', 'scratch'",
    ),
}


@pytest.mark.parametrize(("options", "message"), SCHEDULES.values(), ids=SCHEDULES.keys())
def test_illegal_schedules(options: dict[str, Any], message: str) -> None:
    """SPEC K8."""
    with pytest.raises(metile.CompileError) as caught:
        metile.Schedule(**options)
    assert str(caught.value) == f"Schedule({message}"


@metile.kernel
def k(x, y, n, s: float, N: metile.constexpr):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n, 2), strides=(1, 4), access="write")
    i = metile.arange(0, 64)
    target.store((i, N), source.load(i) * s)


X = mx.ones((64,))
OUT = metile.empty((64, 2), mx.float32)
GIVEN = mx.zeros((64, 2))
ALLOWED = "expected an mx.array, metile.empty(...), int, float or bool"
NUMPY = f"{ALLOWED}\nhint: convert NumPy arrays with mx.array(x)"
GRID = "expected one to three integers of 0 to 2147483647: the number of programs along each axis"
KNOWN = (
    "expected one of float16, bfloat16, float32, int8, int16, int32, int64, uint8, uint16, uint32, "
    "uint64, bool"
)
VIEWED = """\
test_bad_calls.py:{line}:14: error: [tensor] {text}
      {source}
      {carets}
hint: {hint}"""


def viewed(name: str, text: str, hint: str) -> str:
    """The message of a view that does not fit, at its declaration."""
    line, source = {
        "x": (1, 'source = metile.tensor(x, shape=(n,), access="read")'),
        "y": (2, 'target = metile.tensor(y, shape=(n, 2), strides=(1, 4), access="write")'),
    }[name]
    column = source.index("metile")
    return VIEWED.format(
        line=k.definition.loc.line + line,
        text=f"{name}: {text}",
        source=source,
        carets=" " * column + "^" * (len(source) - column),
        hint=hint,
    )


LARGER = "pass a larger array, or declare the shape it has"
CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "an array smaller than its view": (
        lambda: k[(1,)](X, OUT, 65, 1.0, N=0),
        viewed(
            "x",
            "its view needs 65 elements (shape (65,), strides (1,), with n=65), the array given "
            "has 64",
            LARGER,
        ),
    ),
    "an output smaller than its view": (
        lambda: k[(1,)](X, metile.empty((8,), mx.float32), 5, 1.0, N=0),
        viewed(
            "y",
            "its view needs 9 elements (shape (5, 2), strides (1, 4), with n=5), the array given "
            "has 8",
            LARGER,
        ),
    ),
    "a negative extent": (
        lambda: k[(1,)](X, OUT, -1, 1.0, N=0),
        viewed(
            "x",
            "extent 0 of its view is -1 (n), expected 0 to 2147483647",
            "pass scalars that make the extents of x fit",
        ),
    ),
    "a scalar beyond i32": (
        lambda: k[(1,)](X, OUT, 2**31, 1.0, N=0),
        "[k] scalar 'n' = 2147483648 does not fit i32 (-2147483648 to 2147483647)",
    ),
    "too many arguments": (
        lambda: k[(1,)](X, OUT, 5, 1.0, 0, 2),
        "[k] 6 arguments given; the kernel takes 5: x, y, n, s, N",
    ),
    "an argument missing": (
        lambda: k[(1,)](X, OUT, 5, N=0),
        "[k] missing argument 's'",
    ),
    "a constexpr missing": (
        lambda: k[(1,)](X, OUT, 5, 1.0),
        "[k] missing constexpr 'N'\nhint: pass N=...",
    ),
    "an argument unknown": (
        lambda: k[(1,)](X, OUT, 5, 1.0, N=0, M=2),
        "[k] unknown argument 'M'; the kernel takes x, y, n, s, N",
    ),
    "an argument twice": (
        lambda: k[(1,)](X, OUT, 5, 1.0, N=0, x=X),
        "[k] argument 'x' is given twice",
    ),
    "a NumPy array": (
        lambda: k[(1,)](np.zeros(64, np.float32), OUT, 5, 1.0, N=0),
        f"[k] 'x' is of type ndarray; {NUMPY}",
    ),
    "a NumPy array for an output": (
        lambda: k[(1,)](X, np.zeros((64, 2)), 5, 1.0, N=0),
        f"[k] 'y' is of type ndarray; {NUMPY}",
    ),
    "a list": (
        lambda: k[(1,)]([1.0], OUT, 5, 1.0, N=0),
        f"[k] 'x' is of type list; {ALLOWED}",
    ),
    "None": (
        lambda: k[(1,)](X, None, 5, 1.0, N=0),
        f"[k] 'y' is of type NoneType; {ALLOWED}",
    ),
    "a string for a float": (
        lambda: k[(1,)](X, OUT, 5, "1", N=0),
        f"[k] 's' is of type str; {ALLOWED}",
    ),
    "an array for a scalar": (
        lambda: k[(1,)](X, OUT, mx.array([1, 2]), 1.0, N=0),
        "[k] 'n' is used as a scalar and given an array of shape (2,)\n"
        "hint: declare it with metile.tensor(n, ...) to load from it",
    ),
    "metile.empty for an input": (
        lambda: k[(1,)](metile.empty((64,), metile.f32), OUT, 5, 1.0, N=0),
        "[k] 'x' is read and given metile.empty\nhint: pass an array",
    ),
    "a dtype without kernels": (
        lambda: k[(1,)](X.astype(mx.complex64), OUT, 5, 1.0, N=0),
        f"[k: x] dtype complex64 is not supported; {KNOWN}",
    ),
    "an empty of a dtype without kernels": (
        lambda: metile.empty((3,), mx.complex64),
        f"[empty] dtype complex64 is not supported; {KNOWN}",
    ),
    "an empty of a negative extent": (
        lambda: metile.empty((3, -1), mx.float32),
        "[empty] shape is (3, -1); expected non-negative integers",
    ),
    "an empty without a shape": (
        lambda: metile.empty(None, mx.float32),  # type: ignore[arg-type]
        "[empty] shape is None; expected non-negative integers",
    ),
    "an empty of a NumPy dtype": (
        lambda: metile.empty(3, np.dtype("float32")),
        "[empty] dtype is dtype('float32'); expected a metile dtype or an MLX dtype\n"
        "hint: metile.f32, or mx.float32",
    ),
    "a NumPy array as grid": (
        lambda: k[np.array([1, 2])],  # type: ignore[index]
        f"[k] grid is array([1, 2]); {GRID}",
    ),
    "four grid axes": (lambda: k[(1, 2, 3, 4)], f"[k] grid is (1, 2, 3, 4); {GRID}"),
    "no grid axis": (lambda: k[()], f"[k] grid is (); {GRID}"),
    "a negative grid": (lambda: k[-1], f"[k] grid is -1; {GRID}"),
    "a float grid": (lambda: k[(1.5,)], f"[k] grid is (1.5,); {GRID}"),  # type: ignore[arg-type]
    "a huge grid": (lambda: k[2**31], f"[k] grid is 2147483648; {GRID}"),
    "None as grid": (lambda: k[None], f"[k] grid is None; {GRID}"),  # type: ignore[index]
    "no grid": (
        lambda: k(X, OUT, 5, 1.0, N=0),
        "[k] a kernel is launched over a grid of programs\nhint: k[(programs,)](...)",
    ),
    "a math mode unknown": (
        lambda: k[(1,)](X, OUT, 5, 1.0, N=0, math_mode="slow"),
        "math_mode is 'slow'; expected one of safe, relaxed, fast",
    ),
    "a schedule that is none": (
        lambda: k[(1,)](X, OUT, 5, 1.0, N=0, schedule="fast"),  # type: ignore[arg-type]
        "schedule is 'fast'; expected a metile.Schedule",
    ),
    "a default schedule that is none": (
        lambda: metile.kernel(schedule="fast"),  # type: ignore[call-overload]
        "schedule is 'fast'; expected a metile.Schedule",
    ),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS.keys())
def test_wrong_calls(call: Callable[[], object], message: str) -> None:
    """SPEC X10, K7: before anything is compiled or launched."""
    for _ in range(2):
        with pytest.raises(metile.LaunchError) as caught:
            call()
        text = str(caught.value)
        assert text[text.find("test_bad_calls.py") if "error: " in text else 0 :] == message


def prepared() -> metile.Dispatch:
    return k[(1,)].prepare(X, OUT, 5, 1.0, N=0)


DISPATCHES: dict[str, tuple[tuple[Any, ...], str]] = {
    "an argument missing": (
        (X, GIVEN, 5),
        "[k] 3 arguments given; this dispatch takes 4: x, y, n, s",
    ),
    "another dtype": (
        (X.astype(mx.float16), GIVEN, 5, 1.0),
        "[k] array 'x' is float16 of shape (64,); prepared for float32 of shape (64,)",
    ),
    "another shape": (
        (X[:3], GIVEN, 3, 1.0),
        "[k] array 'x' is float32 of shape (3,); prepared for float32 of shape (64,)",
    ),
    "another shape of the output": (
        (X, X, 3, 1.0),
        "[k] array 'y' is float32 of shape (64,); prepared for float32 of shape (64, 2)",
    ),
    "a NumPy array": (
        (np.ones(64, np.float32), GIVEN, 5, 1.0),
        "[k] array 'x' is of type ndarray; prepared for float32 of shape (64,)",
    ),
    "None": (
        (None, GIVEN, 5, 1.0),
        "[k] array 'x' is of type NoneType; prepared for float32 of shape (64,)",
    ),
    "a float for an int": (
        (X, GIVEN, 5.0, 1.0),
        "[k] scalar 'n' is 5.0, of type float; prepared for int",
    ),
    "a bool for an int": (
        (X, GIVEN, True, 1.0),
        "[k] scalar 'n' is True, of type bool; prepared for int",
    ),
    "an array for an int": (
        (X, GIVEN, mx.array(5), 1.0),
        "[k] scalar 'n' is of type array; prepared for int",
    ),
    "a scalar beyond i32": (
        (X, GIVEN, -(2**31) - 1, 1.0),
        "[k] scalar 'n' = -2147483649 does not fit i32 (-2147483648 to 2147483647)",
    ),
    "an array smaller than its view": (
        (X, GIVEN, 100, 1.0),
        viewed(
            "x",
            "its view needs 100 elements (shape (100,), strides (1,), with n=100), the array given "
            "has 64",
            LARGER,
        ),
    ),
}


@pytest.mark.parametrize(("arguments", "message"), DISPATCHES.values(), ids=DISPATCHES.keys())
def test_wrong_calls_of_a_dispatch(arguments: tuple[Any, ...], message: str) -> None:
    """SPEC X10: also when an equal value of another type has been launched before."""
    dispatch = prepared()
    for n in (1, 5):
        dispatch(X, GIVEN, n, 1.0)
    with pytest.raises(metile.LaunchError) as caught:
        dispatch(*arguments)
    text = str(caught.value)
    assert text[text.find("test_bad_calls.py") if "error: " in text else 0 :] == message


def test_what_a_dispatch_converts() -> None:
    """NumPy's numbers, an integer for a float, and metile.empty for the output."""
    dispatch = prepared()
    expected = dispatch(X, GIVEN, 5, 2.0)
    for n, s in ((np.int32(5), 2.0), (5, 2), (5, np.float32(2)), (np.int64(5), np.float64(2))):
        assert mx.array_equal(dispatch(X, OUT, n, s), expected)


def test_numpy_numbers_are_python_numbers() -> None:
    """Also in the grid and as constexprs; they make no second specialisation."""
    expected = k[(1,)](X, OUT, 5, 2.0, N=1)
    made = k[(np.int64(1),)](X, OUT, np.int32(5), np.float32(2), N=np.int64(1))
    assert mx.array_equal(made, expected)


COMPILED: dict[str, tuple[Callable[[], object], str]] = {
    "a float for an extent": (
        lambda: k[(1,)](X, OUT, 5.0, 1.0, N=0),
        "[tensor] an entry of shape is `n`, a runtime f32, expected an int, a constexpr, a "
        "runtime int parameter itself or num_programs(axis)",
    ),
    "a number for an array": (
        lambda: k[(1,)](3, OUT, 5, 1.0, N=0),
        "[tensor] param is `x`, a runtime i32, expected an array parameter",
    ),
    "arithmetic on a storage dtype": (
        lambda: k[(1,)](X.astype(mx.int16), OUT, 5, 1.0, N=0),
        "i16 has no arithmetic; it is only loaded, stored and cast",
    ),
    "a list as constexpr": (
        lambda: k[(1,)](X, OUT, 5, 1.0, N=[0]),
        "constexpr 'N' is a list; it can be int, float, bool, str, None, a dtype, a ThreadLayout, "
        "a tuple of these, or a metile.inline function",
    ),
    "an array as constexpr": (
        lambda: k[(1,)](X, OUT, 5, 1.0, N=mx.array(0)),
        "constexpr 'N' is an array; it can be int, float, bool, str, None, a dtype, a "
        "ThreadLayout, a tuple of these, or a metile.inline function",
    ),
}


@pytest.mark.parametrize(("call", "message"), COMPILED.values(), ids=COMPILED.keys())
def test_arguments_the_kernel_can_not_be_compiled_for(
    call: Callable[[], object], message: str
) -> None:
    """SPEC D: at the kernel's own line."""
    for _ in range(2):
        with pytest.raises(metile.CompileError) as caught:
            call()
        assert caught.value.message == message
        assert caught.value.loc is not None
        assert caught.value.loc.file == __file__
        assert caught.value.loc.line in range(k.definition.loc.line, k.definition.loc.line + 6)
