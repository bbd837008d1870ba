"""What the front end rejects, with the exact text a user sees: place, caret, hint (SPEC D)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from metile_mlx.errors import CompileError, UnsupportedError
from tests.support.kernels import load_module, rejection, shown, tile_ir

VIEW = """
def k(x, n, N: metile.constexpr = 64):
    view = metile.tensor(x, shape=(n,), access="read_write")
    i = metile.arange(0, 64)
"""

CASES = {
    "if on a tile": """\
    if i < n:
        view.store(i, 1)
> k.py:6:8: error: `if` needs one value for the whole threadgroup, got `i_lt_n`, a tile of 64 bool
>       if i < n:
>          ^^^^^
> hint: use metile.where(condition, a, b), or mask= of load and store
""",
    "conditional expression on a tile": """\
    y = 1 if i < n else 2
> k.py:6:14: error: a conditional expression needs one value for the whole threadgroup, \
got `i_lt_n`, a tile of 64 bool
>       y = 1 if i < n else 2
>                ^^^^^
> hint: use metile.where(condition, a, b)
""",
    "and on masks": """\
    y = i < n and i > 2
> k.py:6:9: error: `and` needs one value for the whole threadgroup, got `i_lt_n`, a tile of 64 bool
>       y = i < n and i > 2
>           ^^^^^
> hint: use a & b to combine masks
""",
    "or on masks": """\
    y = n > 3 or i > 2
> k.py:6:18: error: `or` needs one value for the whole threadgroup, got `i_gt_2`, a tile of 64 bool
>       y = n > 3 or i > 2
>                    ^^^^^
> hint: use a | b to combine masks
""",
    "not on a mask": """\
    y = not (i < n)
> k.py:6:9: error: `not` needs one value for the whole threadgroup, got `i_lt_n`, a tile of 64 bool
>       y = not (i < n)
>           ^^^^^^^^^^^
> hint: use ~mask to negate a mask
""",
    "unknown name": """\
    y = vew.load(i)
> k.py:6:9: error: name 'vew' is not defined
>       y = vew.load(i)
>           ^^^
> hint: did you mean 'view'?
""",
    "unknown function": """\
    j = metile.arrange(0, 64)
> k.py:6:9: error: module 'metile_mlx.frontend.language' has no 'arrange'
>       j = metile.arrange(0, 64)
>           ^^^^^^^^^^^^^^
> hint: did you mean 'arange'?
""",
    "unknown method": """\
    view.lod(i)
> k.py:6:5: error: `view`, a 1-dimensional tensor of f32 has no 'lod'; it has dtype, load, store
>       view.lod(i)
>       ^^^^^^^^
""",
    "method of an array": """\
    x.load(i)
> k.py:6:5: error: `x`, an array of f32 has no 'load'; it has dtype
>       x.load(i)
>       ^^^^^^
> hint: declare a view first: metile.tensor(x, shape=..., access=...)
""",
    "arithmetic on an array": """\
    y = x * 2
> k.py:6:9: error: * does not take `x`, an array of f32 and 2
>       y = x * 2
>           ^^^^^
> hint: declare a view and load from it: metile.tensor(x, shape=..., ...).load
""",
    "arithmetic on a tensor": """\
    y = 2 - view
> k.py:6:9: error: - takes numbers, got `view`, a 1-dimensional tensor of f32
>       y = 2 - view
>           ^^^^^^^^
> hint: load from it first: view.load(indices)
""",
    "used before assigned": """\
    y = later
    later = 1
> k.py:6:9: error: 'later' is used before it is assigned
>       y = later
>           ^^^^^
> hint: only statements that are reached assign: an `if` on a constexpr takes one branch, \
a loop may run zero times
""",
    "assigned on one side of a runtime if": """\
    if n > 3:
        y = 1
    view.store(i, y)
> k.py:8:19: error: 'y' is assigned on only one side of the `if` in line 6
>       view.store(i, y)
>                     ^
> hint: assign it before the `if`, or on both sides
""",
    "different things on the sides of a runtime if": """\
    if n > 3:
        y = "a"
    else:
        y = 1
> k.py:6:5: error: 'y' is 'a' or 1 after the `if` in line 6
>       if n > 3:
>       ^^^^^^^^^
> hint: a runtime choice is between tiles, scalars and numbers; decide with a constexpr
""",
    "float index": """\
    y = view.load(i * 1.0)
> k.py:6:19: error: [load] an index of view is f32, expected i32
>       y = view.load(i * 1.0)
>                     ^^^^^^^
> hint: cast the index: metile.cast(index, metile.i32)
""",
    "rank": """\
    y = view.load((i, 0))
> k.py:6:19: error: [load] view has 1 dimension, got 2 indices
>       y = view.load((i, 0))
>                     ^^^^^^
> hint: give one index per dimension
""",
    "mask dtype": """\
    y = view.load(i, mask=i)
> k.py:6:27: error: [load] mask is i32, expected bool
>       y = view.load(i, mask=i)
>                             ^
> hint: compare: mask=(x != 0)
""",
    "fill of a tile": """\
    y = view.load(i, fill=i)
> k.py:6:27: error: [load] fill is `i`, a tile of 64 i32, expected a uniform scalar
>       y = view.load(i, fill=i)
>                             ^
""",
    "integer into a float tensor": """\
    view.store(i, i)
> k.py:6:19: error: [store] value is i32, view holds f32
>       view.store(i, i)
>                     ^
> hint: cast it: metile.cast(value, metile.f32)
""",
    "u32 with i32 (K4)": """\
    y = i + metile.cast(i, metile.u32)
> k.py:6:9: error: i32 and u32 do not mix: neither holds every value of the other
>       y = i + metile.cast(i, metile.u32)
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast one of them with metile.cast
""",
    "constant out of range": """\
    y = i + 3_000_000_000
> k.py:6:9: error: 3000000000 does not fit i32 (-2147483648..2147483647)
>       y = i + 3_000_000_000
>           ^^^^^^^^^^^^^^^^^
> hint: use a smaller number or a wider dtype
""",
    "no arithmetic on i64": """\
    y = metile.cast(i, metile.i64) + 1
> k.py:6:9: error: i64 has no arithmetic; it is only loaded, stored and cast
>       y = metile.cast(i, metile.i64) + 1
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast to i32, u32 or f32 first
""",
    "exp of integers": """\
    y = metile.exp(i)
> k.py:6:9: error: exp takes floats, got i32
>       y = metile.exp(i)
>           ^^^^^^^^^^^^^
> hint: cast to f32 first: metile.cast
""",
    "where on numbers": """\
    y = metile.where(i, 1, 2)
> k.py:6:9: error: [where] condition is i32, expected bool
>       y = metile.where(i, 1, 2)
>           ^^^^^^^^^^^^^^^^^^^^^
> hint: compare first: metile.where(x != 0, ...)
""",
    "shapes that differ": """\
    y = i + metile.arange(0, 32)
> k.py:6:9: error: tiles of different shapes meet: i (64,) and arange_32 (32,)
>       y = i + metile.arange(0, 32)
>           ^^^^^^^^^^^^^^^^^^^^^^^^
> hint: tile sizes agree within a kernel; reshape or use one size
""",
    "load after store (F47)": """\
    view.store(i, 1)
    y = view.load(i)
> k.py:7:9: error: [load] x was stored to in line 6; a load can't see stores of the same launch
>       y = view.load(i)
>           ^^^^^^^^^^^^
> hint: load before the first store and keep the value, or use a second kernel
""",
    "load after a store in a branch (F47)": """\
    if n > 2:
        view.store(i, 1)
    y = view.load(i)
> k.py:8:9: error: [load] x was stored to in line 7; a load can't see stores of the same launch
>       y = view.load(i)
>           ^^^^^^^^^^^^
> hint: load before the first store and keep the value, or use a second kernel
""",
    "load after store by other owners (F47)": """\
    four = metile.ThreadLayout.identity(64, elements_per_thread=2)
    one = metile.ThreadLayout.identity(64)
    view.store(metile.arange(0, 64, layout=one), 1)
    y = view.load(metile.arange(0, 64, layout=four))
> k.py:9:9: error: [load] x was stored to in line 8; a load can't see stores of the same launch
>       y = view.load(metile.arange(0, 64, layout=four))
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: load before the first store and keep the value, or use a second kernel
""",
    "second view with another access": """\
    other = metile.tensor(x, shape=n, access="read")
> k.py:6:46: error: [tensor] x is declared access='read' and access='read_write'
>       other = metile.tensor(x, shape=n, access="read")
>                                                ^^^^^^
> hint: give both views access='read_write'
""",
    "tensor in a loop (K2)": """\
    for j in range(2):
        other = metile.tensor(x, shape=n, access="read_write")
> k.py:7:17: error: [tensor] declared inside a loop; tensors are declared at kernel entry
>           other = metile.tensor(x, shape=n, access="read_write")
>                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: move the declaration to the top of the kernel
""",
    "tensor in a runtime branch (K2)": """\
    if n > 1:
        other = metile.tensor(x, shape=n, access="read_write")
> k.py:7:17: error: [tensor] declared inside a runtime `if`; tensors are declared at kernel entry
>           other = metile.tensor(x, shape=n, access="read_write")
>                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: move the declaration to the top of the kernel
""",
    "computed extent (K2)": """\
    other = metile.tensor(x, shape=(n * 2,), access="read_write")
> k.py:6:36: error: [tensor] an entry of shape is `n_times_2`, a runtime i32, expected an int, \
a constexpr, a runtime int parameter itself or num_programs(axis)
>       other = metile.tensor(x, shape=(n * 2,), access="read_write")
>                                      ^^^^^^^^
> hint: compute it on the host and pass it as a parameter
""",
    "sum of f16 (R4, F67)": """\
    y = metile.sum(metile.cast(i, metile.f16))
> k.py:6:20: error: [sum] x is f16, cast to f32 before summing: a sum in f16 overflows or stagnates
>       y = metile.sum(metile.cast(i, metile.f16))
>                      ^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: metile.sum(i_f16, acc=metile.f32)
""",
    "sum of bf16 (R4, F67)": """\
    b = metile.cast(i, metile.bf16)
    y = metile.sum(b)
> k.py:7:20: error: [sum] x is bf16, cast to f32 before summing: a sum in bf16 overflows or \
stagnates
>       y = metile.sum(b)
>                      ^
> hint: metile.sum(b, acc=metile.f32)
""",
    "acc in f16 (R4)": """\
    y = metile.sum(metile.cast(i, metile.f32), acc=metile.f16)
> k.py:6:52: error: [sum] acc is metile.f16, expected metile.f32 for f32
>       y = metile.sum(metile.cast(i, metile.f32), acc=metile.f16)
>                                                      ^^^^^^^^^^
""",
    "acc of integers": """\
    y = metile.max(i, acc=metile.f32)
> k.py:6:27: error: [max] acc is metile.f32, expected metile.i32 or metile.u32 for i32
>       y = metile.max(i, acc=metile.f32)
>                             ^^^^^^^^^^
""",
    "a mask without a dtype to count in": """\
    y = metile.sum(i < 3)
> k.py:6:20: error: [sum] x is bool, expected one of f32, i32, u32, or acc=
>       y = metile.sum(i < 3)
>                      ^^^^^
> hint: give the dtype to count in: metile.sum(i_lt_3, acc=metile.i32)
""",
    "axis beyond the rank": """\
    y = metile.min(metile.reshape(i, (8, 8)), axis=2)
> k.py:6:52: error: [min] axis is 2, expected None or 0 to 1
>       y = metile.min(metile.reshape(i, (8, 8)), axis=2)
>                                                      ^
""",
    "max over what a load left out (K2)": """\
    y = metile.max(view.load(i) * 2.0)
> k.py:6:20: error: [load] lanes that are masked off or out of bounds would be 0, and take part in \
the maximum of line 6
>       y = metile.max(view.load(i) * 2.0)
>                      ^^^^^^^^^^^^
> hint: say what they count as: load(..., fill=x), for floats fill=-math.inf is ignored by a maximum
""",
    "argmax of a mask (K6)": """\
    y = metile.argmax(i < 3)
> k.py:6:23: error: [argmax] x is bool, expected one of f16, bf16, f32, i32, u32
>       y = metile.argmax(i < 3)
>                         ^^^^^
> hint: cast it first: metile.argmax(metile.cast(i_lt_3, metile.i32))
""",
    "argmax of i8 (K6)": """\
    y = metile.argmax(metile.cast(i, metile.i8))
> k.py:6:23: error: [argmax] x is i8, expected one of f16, bf16, f32, i32, u32
>       y = metile.argmax(metile.cast(i, metile.i8))
>                         ^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast it first: metile.argmax(metile.cast(i_i8, metile.i32))
""",
    "argmax over what a load left out (K2)": """\
    y = metile.argmax(view.load(i))
> k.py:6:23: error: [load] lanes that are masked off or out of bounds would be 0, and take part in \
the maximum of line 6
>       y = metile.argmax(view.load(i))
>                         ^^^^^^^^^^^^
> hint: say what they count as: load(..., fill=x), for floats fill=-math.inf is ignored by a maximum
""",
    "sum of a scalar": """\
    y = metile.sum(n)
> k.py:6:20: error: [sum] x is `n`, a runtime i32, expected a tile
>       y = metile.sum(n)
>                      ^
""",
    "sum along another axis": """\
    y = metile.sum(metile.cast(i, metile.f32), axis=1)
> k.py:6:53: error: [sum] axis is 1, expected None or 0 to 0
>       y = metile.sum(metile.cast(i, metile.f32), axis=1)
>                                                       ^
""",
    "tensor of a tile": """\
    other = metile.tensor(i, shape=n)
> k.py:6:27: error: [tensor] param is `i`, a tile of 64 i32, expected an array parameter
>       other = metile.tensor(i, shape=n)
>                             ^
""",
    "access": """\
    other = metile.tensor(x, n, access="rw")
> k.py:6:40: error: [tensor] access is 'rw', expected one of 'read', 'write', 'read_write'
>       other = metile.tensor(x, n, access="rw")
>                                          ^^^^
""",
    "axis (F20)": """\
    p = metile.program_id(3)
> k.py:6:27: error: [program_id] axis is 3, expected 0, 1 or 2
>       p = metile.program_id(3)
>                             ^
""",
    "size at run time": """\
    j = metile.arange(0, n)
> k.py:6:26: error: [arange] size is `n`, a runtime i32, expected an int known at compile time
>       j = metile.arange(0, n)
>                            ^
> hint: annotate the parameter metile.constexpr
""",
    "size no power of two": """\
    j = metile.arange(0, 48)
> k.py:6:9: error: [arange] size is 48, expected a power of two
>       j = metile.arange(0, 48)
>           ^^^^^^^^^^^^^^^^^^^^
> hint: use the next power of two and mask the rest: metile.next_power_of_2(n)
""",
    "layout of another size": """\
    j = metile.convert_layout(i, metile.ThreadLayout.identity(32))
> k.py:6:9: error: [convert_layout] the tile has 64 elements, ThreadLayout((0, 1, 2, 3, 4)) owns 32
>       j = metile.convert_layout(i, metile.ThreadLayout.identity(32))
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "illegal layout in a kernel": """\
    j = metile.ThreadLayout((0, 1))
> k.py:6:9: error: [ThreadLayout] a layout has 32 to 1024 threads, got 4 (4 elements, 1 per thread)
>       j = metile.ThreadLayout((0, 1))
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use at least 32 elements, or fewer per thread
""",
    "unknown argument": """\
    j = metile.arange(0, 64, stride=2)
> k.py:6:9: error: [arange] got an unexpected keyword argument 'stride'
>       j = metile.arange(0, 64, stride=2)
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: it takes arange(start, size, layout)
""",
    "range of a runtime value": """\
    for j in range(n):
        pass
> k.py:6:14: error: range() computes with compile-time constants, got `n`, a runtime i32
>       for j in range(n):
>                ^^^^^^^^
> hint: use metile.tile_range, or make the bound a metile.constexpr: range() is unrolled
""",
    "endless unrolling": """\
    for j in range(5000):
        pass
> k.py:6:14: error: the loop would be unrolled 5000 times, at most 4096
>       for j in range(5000):
>                ^^^^^^^^^^^
> hint: use tiles for the inner extent, or more programs
""",
    "break in a runtime if": """\
    for j in range(2):
        if n > j:
            break
> k.py:8:13: error: break inside a runtime `if`: whether it happens is not known at compile time
>               break
>               ^^^^^
> hint: put the statements that follow under the `if`, or use masks
""",
    "return in a runtime if": """\
    if n > 4:
        return
> k.py:7:9: error: return inside a runtime `if`: whether it happens is not known at compile time
>           return
>           ^^^^^^
> hint: put the statements that follow under the `if`, or use masks
""",
    "return of a value": """\
    return i
> k.py:6:5: error: a kernel returns nothing
>       return i
>       ^^^^^^^^
> hint: write results with tensor.store; the call returns the written arrays
""",
    "while": """\
    while n > 0:
        pass
> k.py:6:5: error: while is not allowed in a kernel
>       while n > 0:
>       ^^^^^^^^^^^^
> hint: use for i in metile.tile_range(start, end, step)
""",
    "lambda": """\
    f = lambda a: a
> k.py:6:9: error: a lambda is not allowed in a kernel
>       f = lambda a: a
>           ^^^^^^^^^^^
> hint: write a function and mark it @metile.inline
""",
    "comprehension": """\
    f = tuple(j for j in range(3))
> k.py:6:14: error: a comprehension is not allowed in a kernel
>       f = tuple(j for j in range(3))
>                ^^^^^^^^^^^^^^^^^^^^^
> hint: write a `for` loop over range(constexpr)
""",
    "list": """\
    y = view.load([i])
> k.py:6:19: error: a list is not allowed in a kernel
>       y = view.load([i])
>                     ^^^
> hint: use a tuple: (a, b)
""",
    "element of a tile": """\
    y = i[0]
> k.py:6:9: error: `i`, a tile of 64 i32 can't be indexed with []
>       y = i[0]
>           ^^^^
> hint: declare a view and use tensor.load(indices); tiles have no element access
""",
    "assignment to an element": """\
    view[0] = 1
> k.py:6:5: error: a kernel assigns to names only
>       view[0] = 1
>       ^^^^^^^
> hint: write memory with tensor.store(indices, value); tiles are never changed
""",
    "unpacking a tile": """\
    a, b = i
> k.py:6:5: error: can't unpack `i`, a tile of 64 i32
>       a, b = i
>       ^^^^
""",
    "print": """\
    print(i)
> k.py:6:5: error: print() is not available in a kernel
>       print(i)
>       ^^^^^^^^
> hint: take it out; METILE_DUMP shows the IR
""",
    "Python's max on tiles": """\
    y = max(i, 3)
> k.py:6:9: error: max() computes with compile-time constants, got `i`, a tile of 64 i32
>       y = max(i, 3)
>           ^^^^^^^^^
> hint: use metile.maximum(a, b)
""",
    "static assertion": """\
    assert N % 48 == 0, f"N is {N}, not a multiple of {48:03d}"
> k.py:6:12: error: N is 64, not a multiple of 048
>       assert N % 48 == 0, f"N is {N}, not a multiple of {48:03d}"
>              ^^^^^^^^^^^
""",
    "constant division by zero": """\
    y = N // (N - 64)
> k.py:6:9: error: division by zero in a compile-time expression
>       y = N // (N - 64)
>           ^^^^^^^^^^^^^
""",
    "constant too long to compute": """\
    y = i + (3 << 2147483647)
> k.py:6:14: error: an integer of more than 4096 bits (in a compile-time expression)
>       y = i + (3 << 2147483647)
>                ^^^^^^^^^^^^^^^
""",
    "constant power too long to compute": """\
    y = i + N ** N ** N
> k.py:6:13: error: an integer of more than 4096 bits (in a compile-time expression)
>       y = i + N ** N ** N
>               ^^^^^^^^^^^
""",
    "constant too long to show": """\
    y = i + (1 << 4000)
> k.py:6:9: error: an integer of 4001 bits does not fit i32 (-2147483648..2147483647)
>       y = i + (1 << 4000)
>           ^^^^^^^^^^^^^^^
> hint: use a smaller number or a wider dtype
""",
    "bitwise not of floats": """\
    y = ~(i * 0.5)
> k.py:6:9: error: ~ takes integers and masks, got f32
>       y = ~(i * 0.5)
>           ^^^^^^^^^^
""",
    "loop over a tile": """\
    for j in i:
        pass
> k.py:6:14: error: a loop runs over range() of constants or a tuple, got `i`, a tile of 64 i32
>       for j in i:
>                ^
> hint: for i in range(N) with a constexpr N is unrolled; metile.tile_range(0, n) loops
""",
}


def split(case: str) -> tuple[str, str]:
    """Kernel lines, and the message behind `> `."""
    lines = case.splitlines()
    body = [line for line in lines if not line.startswith(">")]
    return "\n".join(body) + "\n", "\n".join(line[2:] for line in lines if line.startswith(">"))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_error_text(case: str, tmp_path: Path) -> None:
    body, expected = split(case)
    error = rejection(tmp_path, VIEW + body, "f32*", "i32")
    assert shown(error, tmp_path) == expected
    assert isinstance(error, CompileError)


UNSUPPORTED = {
    "runtime assert": (
        "assert n > 3",
        "k.py:6:12: error: assert checks compile-time conditions, got `n_gt_3`, a runtime bool",
    ),
}


@pytest.mark.parametrize(("body", "expected"), UNSUPPORTED.values(), ids=UNSUPPORTED.keys())
def test_what_comes_later_says_so(body: str, expected: str, tmp_path: Path) -> None:
    error = rejection(tmp_path, f"{VIEW}    {body}\n", "f32*", "i32")
    assert isinstance(error, UnsupportedError)
    assert shown(error, tmp_path).splitlines()[0] == expected


@pytest.mark.parametrize(
    ("statement", "word"),
    [
        ("try:\n        pass\n    finally:\n        pass", "try"),
        ("with n:\n        pass", "with"),
        ("raise n", "raise"),
        ("import os", "import"),
        ("def f(): pass", "a nested function"),
        ("class C: pass", "a class"),
        ("global q", "global"),
        ("del n", "del"),
        ("y = {1: 2}", "a dict"),
        ("y = (z := 3)", "an assignment inside an expression"),
        ("yield n", "yield"),
        ("y = n @ n", "@"),
    ],
)
def test_statements_a_kernel_can_not_contain(statement: str, word: str, tmp_path: Path) -> None:
    error = rejection(tmp_path, f"{VIEW}    {statement}\n", "f32*", "i32")
    assert str(error).splitlines()[0].endswith(f": error: {word} is not allowed in a kernel")
    assert error.loc is not None
    assert error.loc.line == 6


def test_store_to_a_read_tensor_is_rejected(tmp_path: Path) -> None:
    """F36: nothing writes through an input."""
    text = """
def k(x):
    view = metile.tensor(x, shape=64, access="read")
    view.store(0, 1.0)
"""
    assert shown(rejection(tmp_path, text, "f32*"), tmp_path) == textwrap.dedent("""\
        k.py:5:5: error: [store] view is declared access='read'
              view.store(0, 1.0)
              ^^^^^^^^^^^^^^^^^^
        hint: declare access='write' or 'read_write' to store to it""")


def test_load_from_a_write_tensor_is_rejected(tmp_path: Path) -> None:
    text = """
def k(x):
    view = metile.tensor(x, shape=64, access="write")
    value = view.load(0)
"""
    assert shown(rejection(tmp_path, text, "f32*"), tmp_path).splitlines()[0] == (
        "k.py:5:13: error: [load] view is declared access='write'"
    )


INLINED = """
@metile.inline
def scale(tile, by):
    return tile * by

@metile.inline
def twice(tile):
    return scale(tile, "2")

@metile.inline
def loop(tile):
    return loop(tile)

def plain(tile):
    return tile

@metile.inline
def static(tile, N: metile.constexpr):
    return tile * N

def k(x, CASE: metile.constexpr):
    i = metile.arange(0, 64)
    if CASE == 0:
        twice(i)
    elif CASE == 1:
        loop(i)
    elif CASE == 2:
        plain(i)
    elif CASE == 3:
        static(i, i)
    else:
        scale(i)
"""


def test_error_in_a_callee_shows_the_calls(tmp_path: Path) -> None:
    """SPEC K5, D: the line that is wrong first, then each call on the way."""
    assert shown(rejection(tmp_path, INLINED, "f32*", CASE=0), tmp_path) == textwrap.dedent("""\
        k.py:5:12: error: * takes numbers, got '2'
              return tile * by
                     ^^^^^^^^^
        k.py:9:12: note: in scale, inlined here
              return scale(tile, "2")
                     ^^^^^^^^^^^^^^^^
        k.py:25:9: note: in twice, inlined here
                  twice(i)
                  ^^^^^^^^""")


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (1, "k.py:13:12: error: recursion: loop -> loop"),
        (2, "k.py:29:9: error: plain is a plain Python function"),
        (
            3,
            "k.py:31:9: error: [static] N is `i`, a tile of 64 i32, expected a compile-time "
            "constant",
        ),
        (4, "k.py:33:9: error: [scale] missing a required argument: 'by'"),
    ],
)
def test_calls_that_can_not_be_inlined(case: int, expected: str, tmp_path: Path) -> None:
    error = rejection(tmp_path, INLINED, "f32*", CASE=case)
    assert shown(error, tmp_path).splitlines()[0] == expected


def test_outside_data_is_named_with_its_type(tmp_path: Path) -> None:
    text = "weights = [1, 2]\ndef k(x):\n    i = metile.arange(0, 32) * weights\n"
    assert shown(rejection(tmp_path, text, "f32*"), tmp_path) == textwrap.dedent("""\
        k.py:4:32: error: 'weights' is a list; from outside a kernel takes int, float, bool, str, \
dtypes, ThreadLayouts, tuples of these, and metile.inline functions
              i = metile.arange(0, 32) * weights
                                         ^^^^^^^
        hint: pass it as an argument: an array parameter, or a metile.constexpr""")


def test_constexpr_of_a_wrong_type_is_shown_at_the_parameter(tmp_path: Path) -> None:
    text = "def k(x, N: metile.constexpr):\n    pass\n"
    assert shown(rejection(tmp_path, text, "f32*", N=[1]), tmp_path).splitlines()[:3] == [
        "k.py:2:10: error: constexpr 'N' is a list; it can be int, float, bool, str, None, "
        "a dtype, a ThreadLayout, a tuple of these, or a metile.inline function",
        "  def k(x, N: metile.constexpr):",
        "           ^^^^^^^^^^^^^^^^^^^",
    ]


def test_constructs_of_the_automatic_path_reach_the_ir_by_name(tmp_path: Path) -> None:
    """SPEC O4, O5: ownership inference can name what it rejects."""
    text = """
def k(x):
    t = metile.thread_id()
    metile.simd_sum(t)
    metile.barrier()
"""
    ops = tile_ir(load_module(tmp_path, text).k, "f16*").body.ops
    found = [op for op in ops if "construct" in op.attributes()]
    names = [op.attributes()["construct"] for op in found]
    assert names == ["thread_id()", "simd_sum()", "barrier()"]
    assert str(found[1].result.type) == "thread<i32>"
