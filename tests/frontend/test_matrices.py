"""What the front end says of wrong matrices: place, caret and hint of each (SPEC K6, P4)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.support.kernels import rejection, shown

VIEWS = """
def k(A, B, C, M, N, K):
    a = metile.tensor(A, shape=(M, K))
    b = metile.tensor(B, shape=(K, N))
    c = metile.tensor(C, shape=(M, N), access="write")
    x = metile.tile_load(a, (0, 0), (16, 16))
    y = metile.tile_load(b, (0, 0), (16, 16))
"""

CASES = {
    "extents that are no powers of two": """\
    z = metile.tile_load(a, (0, 0), (12, 16))
> k.py:9:37: error: [tile_load] shape is (12, 16), expected powers of two
>       z = metile.tile_load(a, (0, 0), (12, 16))
>                                       ^^^^^^^^
> hint: use the next power of two: what is outside the tensor's bounds is loaded as fill
""",
    "an extent of 0": """\
    z = metile.tile_load(a, (0, 0), (0, 16))
> k.py:9:37: error: [tile_load] shape is (0, 16), expected extents of at least 1
>       z = metile.tile_load(a, (0, 0), (0, 16))
>                                       ^^^^^^^
""",
    "an origin of fewer dimensions": """\
    z = metile.tile_load(a, 0, (16, 16))
> k.py:9:29: error: [tile_load] a has 2 dimensions, got an origin of 1 and a tile of 2
>       z = metile.tile_load(a, 0, (16, 16))
>                               ^
> hint: give one start per dimension; the tile lies along the last ones
""",
    "an origin of more dimensions": """\
    z = metile.tile_load(a, (0, 0, 0), (16, 16))
> k.py:9:29: error: [tile_load] a has 2 dimensions, got an origin of 3 and a tile of 2
>       z = metile.tile_load(a, (0, 0, 0), (16, 16))
>                               ^^^^^^^^^
> hint: give one start per dimension; the tile lies along the last ones
""",
    "a tile of more dimensions": """\
    z = metile.tile_load(a, (0, 0), (2, 16, 16))
> k.py:9:29: error: [tile_load] a has 2 dimensions, got an origin of 2 and a tile of 3
>       z = metile.tile_load(a, (0, 0), (2, 16, 16))
>                               ^^^^^^
> hint: give one start per dimension; the tile lies along the last ones
""",
    "a product of a row": """\
    z = metile.tile_load(a, (0, 0), (16,))
    metile.dot(z, y)
> k.py:10:16: error: [dot] a is tile<16xf32>, expected a tile of two dimensions
>       metile.dot(z, y)
>                  ^
> hint: load it with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    "an origin in a tile": """\
    z = metile.tile_load(a, (metile.arange(0, 16), 0), (16, 16))
> k.py:9:29: error: [tile_load] an entry of origin is `arange_16`, a tile of 16 i32, expected an \
int or a uniform i32 scalar
>       z = metile.tile_load(a, (metile.arange(0, 16), 0), (16, 16))
>                               ^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    "an origin that is no integer": """\
    z = metile.tile_load(a, (0.5, 0), (16, 16))
> k.py:9:29: error: [tile_load] an entry of origin is 0.5, expected an int or a uniform i32 scalar
>       z = metile.tile_load(a, (0.5, 0), (16, 16))
>                               ^^^^^^^^
""",
    "an array that is no view": """\
    z = metile.tile_load(A, (0, 0), (16, 16))
> k.py:9:26: error: [tile_load] tensor is `A`, an array of f32, expected a declared view
>       z = metile.tile_load(A, (0, 0), (16, 16))
>                            ^
> hint: declare it at kernel entry: metile.tensor(array, shape=(M, N))
""",
    "a tile for a view": """\
    z = metile.tile_load(x, (0, 0), (16, 16))
> k.py:9:26: error: [tile_load] tensor is `x`, a tile of 16x16 f32, expected a declared view
>       z = metile.tile_load(x, (0, 0), (16, 16))
>                            ^
> hint: declare it at kernel entry: metile.tensor(array, shape=(M, N))
""",
    "extents at run time": """\
    z = metile.tile_load(a, (0, 0), (M, 16))
> k.py:9:37: error: [tile_load] an entry of shape is `M`, a runtime i32, expected an int known \
at compile time
>       z = metile.tile_load(a, (0, 0), (M, 16))
>                                       ^^^^^^^
> hint: annotate the parameter metile.constexpr
""",
    "a load of what is only written": """\
    z = metile.tile_load(c, (0, 0), (16, 16))
> k.py:9:26: error: [tile_load] c is declared access='write'
>       z = metile.tile_load(c, (0, 0), (16, 16))
>                            ^
> hint: declare access='read_write' to load from it
""",
    "a store to what is only read": """\
    metile.tile_store(a, (0, 0), x)
> k.py:9:5: error: [tile_store] a is declared access='read'
>       metile.tile_store(a, (0, 0), x)
>       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: declare access='write' or 'read_write' to store to it
""",
    "a store of a number": """\
    metile.tile_store(c, (0, 0), 1.0)
> k.py:9:34: error: [tile_store] value is 1.0, expected a tile
>       metile.tile_store(c, (0, 0), 1.0)
>                                    ^^^
> hint: load one with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    "a store of another kind of number": """\
    metile.tile_store(c, (0, 0), metile.cast(x, metile.i32))
> k.py:9:34: error: [tile_store] value is i32, c holds f32
>       metile.tile_store(c, (0, 0), metile.cast(x, metile.i32))
>                                    ^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast it: metile.cast(value, metile.f32)
""",
    "a fill in a tile": """\
    z = metile.tile_load(a, (0, 0), (16, 16), fill=x)
> k.py:9:52: error: [tile_load] fill is `x`, a tile of 16x16 f32, expected a uniform scalar
>       z = metile.tile_load(a, (0, 0), (16, 16), fill=x)
>                                                      ^
""",
    "a product of few rows": """\
    z = metile.dot(metile.tile_load(a, (0, 0), (4, 16)), y)
> k.py:9:20: error: [dot] a is 4 x 16, expected powers of two from 8 to 128
>       z = metile.dot(metile.tile_load(a, (0, 0), (4, 16)), y)
>                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use a larger tile; what is outside the tensor's bounds is loaded as 0
""",
    "a product of many rows": """\
    z = metile.dot(metile.tile_load(a, (0, 0), (256, 16)), y)
> k.py:9:20: error: [dot] a is 256 x 16, expected powers of two from 8 to 128
>       z = metile.dot(metile.tile_load(a, (0, 0), (256, 16)), y)
>                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use tiles of at most 128, and more programs or steps of K
""",
    "depths that differ": """\
    z = metile.dot(metile.tile_load(a, (0, 0), (16, 32)), y)
> k.py:9:9: error: [dot] a is 16 x 32 and b 16 x 16: a has 32 columns, b 16 rows
>       z = metile.dot(metile.tile_load(a, (0, 0), (16, 32)), y)
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: a tile of (M, K) times one of (K, N) gives one of (M, N)
""",
    "sums of another shape": """\
    z = metile.dot(x, y, metile.zeros((16, 32), metile.f32))
> k.py:9:26: error: [dot] acc is tile<16x32xf32>, expected a tile of shape (16, 16)
>       z = metile.dot(x, y, metile.zeros((16, 32), metile.f32))
>                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: start with metile.zeros((16, 16), metile.f32)
""",
    "sums in f16": """\
    z = metile.dot(x, y, metile.zeros((16, 16), metile.f16))
> k.py:9:26: error: [dot] acc is f16, expected f32
>       z = metile.dot(x, y, metile.zeros((16, 16), metile.f16))
>                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: accumulate in f32 and cast the result
""",
    "operands of two dtypes": """\
    z = metile.dot(x, metile.cast(y, metile.f16))
> k.py:9:9: error: [dot] a is f32 and b is f16, expected one dtype of f16, bf16, f32
>       z = metile.dot(x, metile.cast(y, metile.f16))
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast one of them: metile.cast(b, metile.f32)
""",
    "operands of integers": """\
    z = metile.dot(metile.cast(x, metile.i32), metile.cast(y, metile.i32))
> k.py:9:9: error: [dot] a is i32 and b is i32, expected one dtype of f16, bf16, f32
>       z = metile.dot(metile.cast(x, metile.i32), metile.cast(y, metile.i32))
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast both: metile.cast(a, metile.f32)
""",
    "a number for an operand": """\
    z = metile.dot(x, 2.0)
> k.py:9:23: error: [dot] b is 2.0, expected a tile
>       z = metile.dot(x, 2.0)
>                         ^^^
> hint: load one with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    "a scalar for an operand": """\
    z = metile.dot(M, y)
> k.py:9:20: error: [dot] a is `M`, a runtime i32, expected a tile
>       z = metile.dot(M, y)
>                      ^
> hint: load one with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    "views for operands": """\
    z = metile.dot(a, b)
> k.py:9:20: error: [dot] a is `a`, a 2-dimensional tensor of f32, expected a tile
>       z = metile.dot(a, b)
>                      ^
> hint: load one with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    "a number for the sums": """\
    z = metile.dot(x, y, 0)
> k.py:9:26: error: [dot] acc is 0, expected a tile
>       z = metile.dot(x, y, 0)
>                            ^
> hint: start with metile.zeros((M, N), metile.f32)
""",
    "a line for an operand": """\
    z = metile.dot(metile.arange(0, 64), y)
> k.py:9:20: error: [dot] a is tile<64xi32>, expected a tile of two dimensions
>       z = metile.dot(metile.arange(0, 64), y)
>                      ^^^^^^^^^^^^^^^^^^^^
> hint: load it with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    "sums in a line": """\
    z = metile.dot(x, y, metile.zeros(64, metile.f32))
> k.py:9:26: error: [dot] acc is tile<64xf32>, expected a tile of two dimensions
>       z = metile.dot(x, y, metile.zeros(64, metile.f32))
>                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: start with metile.zeros((M, N), metile.f32)
""",
    "a mask": """\
    z = metile.tile_load(a, (0, 0), (16, 16), mask=x > 0)
> k.py:9:9: error: [tile_load] got an unexpected keyword argument 'mask'
>       z = metile.tile_load(a, (0, 0), (16, 16), mask=x > 0)
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: it takes tile_load(tensor, origin, shape, fill)
""",
    "one operand": """\
    z = metile.dot(x)
> k.py:9:9: error: [dot] missing a required argument: 'b'
>       z = metile.dot(x)
>           ^^^^^^^^^^^^^
> hint: it takes dot(a, b, acc)
""",
}

STORED = """
def k(C, M, N):
    c = metile.tensor(C, shape=(M, N), access="read_write")
    x = metile.tile_load(c, (0, 0), (16, 16))
    metile.tile_store(c, (0, 0), x)
    y = metile.tile_load(c, (16, 0), (16, 16))
"""


@pytest.mark.parametrize("name", CASES)
def test_wrong_matrices(name: str, tmp_path: Path) -> None:
    lines = CASES[name].splitlines()
    body = [line for line in lines if not line.startswith("> ")]
    expected = [line.removeprefix("> ") for line in lines if line.startswith("> ")]
    kinds = (*("f32*",) * 3, *("i32",) * 3)
    error = rejection(tmp_path, VIEWS + "\n".join(body) + "\n", *kinds)
    assert shown(error, tmp_path) == "\n".join(expected)


def test_a_load_of_what_has_been_stored(tmp_path: Path) -> None:
    assert shown(rejection(tmp_path, STORED, "f32*", "i32", "i32"), tmp_path) == textwrap.dedent(
        """\
        k.py:7:9: error: [tile_load] C was stored to in line 6; a load can't see stores of the \
same launch
              y = metile.tile_load(c, (16, 0), (16, 16))
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        hint: load before the first store and keep the value, or use a second kernel"""
    )
