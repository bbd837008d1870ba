"""Kernels that are wrong, through the public API: the exact text a user sees (SPEC D)."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.runtime.backends import MetalBackend
from metile_mlx.target import Target

HEAD = """\
import metile_mlx as metile
SWAP = metile.ThreadLayout((5, 1, 2, 3, 4, 0))
ROTATE = metile.ThreadLayout((1, 2, 3, 4, 5, 0))
LANES = metile.ThreadLayout((1, 0, 2, 3, 4, 5))

@metile.kernel
def k(x, y, n, N: metile.constexpr = 64):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    i = metile.arange(0, 64)
"""

# Name: the class of the error, the lines of the kernel, and behind `> ` the message.
CASES: dict[str, tuple[type[metile.MetileError], str]] = {
    "two explicit owners in a store (O3)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
h = metile.arange(0, 64, layout=ROTATE)
target.store(j, source.load(h))
> k.py:13:5: error: [store] 'j' and 'source_load' have different owners: 'j' has \
ThreadLayout((5, 1, 2, 3, 4, 0)), 'source_load' has ThreadLayout((1, 2, 3, 4, 5, 0))
>       target.store(j, source.load(h))
>       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use metile.convert_layout(source_load, ThreadLayout((5, 1, 2, 3, 4, 0)))
""",
    ),
    "two explicit owners in arithmetic (O3)": (
        metile.OwnershipError,
        """\
a = metile.arange(0, 64, layout=SWAP)
b = metile.arange(0, 64, layout=ROTATE)
target.store(a, source.load(a + b))
> k.py:13:33: error: [add] 'a' and 'b' have different owners: 'a' has ThreadLayout((5, 1, 2, 3, \
4, 0)), 'b' has ThreadLayout((1, 2, 3, 4, 5, 0))
>       target.store(a, source.load(a + b))
>                                   ^^^^^
> hint: use metile.convert_layout(b, ThreadLayout((5, 1, 2, 3, 4, 0)))
""",
    ),
    "an implicit owner meets an explicit one (O3)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
target.store(j, source.load(i))
> k.py:12:5: error: [store] 'j' and 'source_load' have different owners: 'j' has \
ThreadLayout((5, 1, 2, 3, 4, 0)), 'source_load' has ThreadLayout((0, 1, 2, 3, 4, 5)) (implicit: \
no layout is stated for it)
>       target.store(j, source.load(i))
>       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use metile.convert_layout(source_load, ThreadLayout((5, 1, 2, 3, 4, 0))), or state the \
owner where it is made: metile.arange(..., layout=...)
""",
    ),
    "implicit and explicit in arithmetic (O3)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
target.store(i + j, 0.0)
> k.py:12:18: error: [add] 'i' and 'j' have different owners: 'i' has ThreadLayout((0, 1, 2, 3, \
4, 5)) (implicit: no layout is stated for it), 'j' has ThreadLayout((5, 1, 2, 3, 4, 0))
>       target.store(i + j, 0.0)
>                    ^^^^^
> hint: use metile.convert_layout(i, ThreadLayout((5, 1, 2, 3, 4, 0))), or state the owner where \
it is made: metile.arange(..., layout=...)
""",
    ),
    "a converted value stored by its old owners (O3)": (
        metile.OwnershipError,
        """\
v = metile.convert_layout(source.load(i), SWAP)
target.store(i, v)
> k.py:12:5: error: [store] 'i' and 'v' have different owners: 'i' has ThreadLayout((0, 1, 2, 3, \
4, 5)) (implicit: no layout is stated for it), 'v' has ThreadLayout((5, 1, 2, 3, 4, 0))
>       target.store(i, v)
>       ^^^^^^^^^^^^^^^^^^
> hint: use metile.convert_layout(i, ThreadLayout((5, 1, 2, 3, 4, 0))), or state the owner where \
it is made: metile.arange(..., layout=...)
""",
    ),
    "a mask of other owners (O3)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
target.store(j, 0.0, mask=i < 3)
> k.py:12:5: error: [store] 'j' and 'i_lt_3' have different owners: 'j' has ThreadLayout((5, 1, \
2, 3, 4, 0)), 'i_lt_3' has ThreadLayout((0, 1, 2, 3, 4, 5)) (implicit: no layout is stated for it)
>       target.store(j, 0.0, mask=i < 3)
>       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use metile.convert_layout(i_lt_3, ThreadLayout((5, 1, 2, 3, 4, 0))), or state the owner \
where it is made: metile.arange(..., layout=...)
""",
    ),
    "a condition of other owners (O3)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
target.store(j, metile.where(i < 3, 1.0, source.load(j)))
> k.py:12:21: error: [where] 'i_lt_3' and 'source_load' have different owners: 'i_lt_3' has \
ThreadLayout((0, 1, 2, 3, 4, 5)) (implicit: no layout is stated for it), 'source_load' has \
ThreadLayout((5, 1, 2, 3, 4, 0))
>       target.store(j, metile.where(i < 3, 1.0, source.load(j)))
>                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: use metile.convert_layout(i_lt_3, ThreadLayout((5, 1, 2, 3, 4, 0))), or state the owner \
where it is made: metile.arange(..., layout=...)
""",
    ),
    "a pointer load beside explicit layouts (O5)": (
        metile.OwnershipError,
        """\
v = metile.load(x + i)
j = metile.arange(0, 64, layout=SWAP)
target.store(j, source.load(j))
> k.py:11:9: error: [load] pointer arithmetic on x is not available beside explicit thread layouts \
(one is stated in line 12)
>       v = metile.load(x + i)
>           ^^^^^^^^^^^^^^^^^^
> hint: declare a view: metile.tensor(x, shape=...)
""",
    ),
    "a pointer load converted (O5)": (
        metile.OwnershipError,
        """\
v = metile.load(x + i)
target.store(i, metile.convert_layout(v, SWAP))
> k.py:11:9: error: [load] pointer arithmetic on x is not available beside explicit thread layouts \
(one is stated in line 12)
>       v = metile.load(x + i)
>           ^^^^^^^^^^^^^^^^^^
> hint: declare a view: metile.tensor(x, shape=...)
""",
    ),
    "a pointer store beside explicit layouts (O5)": (
        metile.OwnershipError,
        """\
v = metile.convert_layout(source.load(i), SWAP)
metile.store(y + i, 1.0)
target.store(metile.arange(0, 64, layout=SWAP), v)
> k.py:12:5: error: [store] pointer arithmetic on y is not available beside explicit thread \
layouts (one is stated in line 11)
>       metile.store(y + i, 1.0)
>       ^^^^^^^^^^^^^^^^^^^^^^^^
> hint: declare a view: metile.tensor(y, shape=...)
""",
    ),
    "thread_id meets an explicit layout (O4)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
target.store(j, source.load(j) + metile.thread_id())
> k.py:12:21: error: [add] 'thread_id_f32' is computed from thread_id(), a value of each \
thread's own, and meets 'source_load' with ThreadLayout((5, 1, 2, 3, 4, 0)): only uniform \
scalars broadcast
>       target.store(j, source.load(j) + metile.thread_id())
>                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: number the elements with metile.arange(0, size, layout=...) instead
""",
    ),
    "thread_id beside explicit layouts (O5)": (
        metile.OwnershipError,
        """\
t = metile.thread_id()
j = metile.arange(0, 64, layout=SWAP)
target.store(j, source.load(j))
> k.py:11:9: error: [thread_id()] is not available beside explicit thread layouts (one is stated \
in line 12)
>       t = metile.thread_id()
>           ^^^^^^^^^^^^^^^^^^
> hint: explicit ownership is for straight-line programs over tensor descriptors
""",
    ),
    "a lane collective meets an explicit layout (O4)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
target.store(j, source.load(j) * metile.simd_sum(source.load(j)))
> k.py:12:38: error: [simd_sum()] is not available beside explicit thread layouts (one is stated \
in line 11)
>       target.store(j, source.load(j) * metile.simd_sum(source.load(j)))
>                                        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: explicit ownership is for straight-line programs over tensor descriptors
""",
    ),
    "a barrier beside explicit layouts (O5)": (
        metile.OwnershipError,
        """\
metile.barrier()
j = metile.arange(0, 64, layout=SWAP)
target.store(j, 1.0)
> k.py:11:5: error: [barrier()] is not available beside explicit thread layouts (one is stated \
in line 12)
>       metile.barrier()
>       ^^^^^^^^^^^^^^^^
> hint: explicit ownership is for straight-line programs over tensor descriptors
""",
    ),
    "an origin of each thread's own (O5)": (
        metile.CompileError,
        """\
j = metile.arange(metile.thread_id(), 64, layout=SWAP)
target.store(j, 1.0)
> k.py:11:23: error: [arange] start is `thread_id`, a per-thread i32, expected an int or a \
uniform i32 scalar
>       j = metile.arange(metile.thread_id(), 64, layout=SWAP)
>                         ^^^^^^^^^^^^^^^^^^
""",
    ),
    "a branch beside explicit layouts (O5, C2)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
if n > 3:
    target.store(j, source.load(j))
> k.py:12:5: error: [if] a branch is not available beside explicit thread layouts (one is stated \
in line 11)
>       if n > 3:
>       ^^^^^^^^^
> hint: use metile.where(condition, a, b), mask= of load and store, or a constexpr
""",
    ),
    "a conversion under a branch (C2)": (
        metile.OwnershipError,
        """\
v = source.load(i)
if n > 3:
    v = metile.convert_layout(v, SWAP)
target.store(metile.arange(0, 64, layout=SWAP), v)
> k.py:12:5: error: 'v' has two owners after the `if` in line 12: ThreadLayout((5, 1, 2, 3, 4, \
0)) and no stated layout
>       if n > 3:
>       ^^^^^^^^^
> hint: convert it before or after the `if`: a branch and explicit thread layouts do not go \
together; use metile.where(condition, a, b), or a constexpr
""",
    ),
    "registers beside a tile without (O6)": (
        metile.LayoutError,
        """\
j = metile.arange(0, 64, layout=metile.ThreadLayout.identity(64, elements_per_thread=2))
target.store(i, source.load(j))
> k.py:11:9: error: [arange] 'j' has 2 elements per thread but 'i' has 1 element per thread (no \
layout is stated for it) (k.py:10)
>       j = metile.arange(0, 64, layout=metile.ThreadLayout.identity(64, elements_per_thread=2))
>           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: state the owner of the other one: layout=ThreadLayout((0, 1, 2, 3, 4, 5), \
elements_per_thread=2)
""",
    ),
    "if on a tile (K5)": (
        metile.CompileError,
        """\
if i < n:
    target.store(i, 1.0)
> k.py:11:8: error: `if` needs one value for the whole threadgroup, got `i_lt_n`, a tile of 64 \
bool
>       if i < n:
>          ^^^^^
> hint: use metile.where(condition, a, b), or mask= of load and store
""",
    ),
    "an unknown name (K1)": (
        metile.CompileError,
        """\
target.store(i, sorce.load(i))
> k.py:11:21: error: name 'sorce' is not defined
>       target.store(i, sorce.load(i))
>                       ^^^^^
> hint: did you mean 'source'?
""",
    ),
    "an unknown function (K1)": (
        metile.CompileError,
        """\
target.store(i, metile.lod(i))
> k.py:11:21: error: module 'metile_mlx' has no 'lod'
>       target.store(i, metile.lod(i))
>                       ^^^^^^^^^^
> hint: did you mean 'load'?
""",
    ),
    "wrong arity of a method (K1)": (
        metile.CompileError,
        """\
target.store(i)
> k.py:11:5: error: [store] missing a required argument: 'value'
>       target.store(i)
>       ^^^^^^^^^^^^^^^
> hint: it takes store(indices, value, mask)
""",
    ),
    "a wrong dtype stored (K4)": (
        metile.CompileError,
        """\
target.store(i, i)
> k.py:11:21: error: [store] value is i32, target holds f32
>       target.store(i, i)
>                       ^
> hint: cast it: metile.cast(value, metile.f32)
""",
    ),
    "u32 with i32 (K4)": (
        metile.CompileError,
        """\
target.store(i, metile.cast(i + metile.cast(i, metile.u32), metile.f32))
> k.py:11:33: error: i32 and u32 do not mix: neither holds every value of the other
>       target.store(i, metile.cast(i + metile.cast(i, metile.u32), metile.f32))
>                                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: cast one of them with metile.cast
""",
    ),
    "an index of a wrong dtype (K2)": (
        metile.CompileError,
        """\
target.store(source.load(i), 1.0)
> k.py:11:18: error: [store] an index of target is f32, expected i32
>       target.store(source.load(i), 1.0)
>                    ^^^^^^^^^^^^^^
> hint: cast the index: metile.cast(index, metile.i32)
""",
    ),
    "a wrong number of indices (K2)": (
        metile.CompileError,
        """\
target.store((i, i), 1.0)
> k.py:11:18: error: [store] target has 1 dimension, got 2 indices
>       target.store((i, i), 1.0)
>                    ^^^^^^
> hint: give one index per dimension
""",
    ),
    "a store to a read tensor (K2, F36)": (
        metile.CompileError,
        """\
source.store(i, 1.0)
> k.py:11:5: error: [store] source is declared access='read'
>       source.store(i, 1.0)
>       ^^^^^^^^^^^^^^^^^^^^
> hint: declare access='write' or 'read_write' to store to it
""",
    ),
    "a load of a write tensor (K2)": (
        metile.CompileError,
        """\
target.store(i, target.load(i))
> k.py:11:21: error: [load] target is declared access='write'
>       target.store(i, target.load(i))
>                       ^^^^^^^^^^^^^^
> hint: declare access='read_write' to load from it
""",
    ),
    "a layout of another size (C1)": (
        metile.CompileError,
        """\
target.store(i, metile.convert_layout(source.load(i), metile.ThreadLayout.identity(32)))
> k.py:11:21: error: [convert_layout] the tile has 64 elements, ThreadLayout((0, 1, 2, 3, 4)) \
owns 32
>       target.store(i, metile.convert_layout(source.load(i), metile.ThreadLayout.identity(32)))
>                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
""",
    ),
    "two sizes in one op (O5)": (
        metile.CompileError,
        """\
target.store(i, source.load(metile.arange(0, 32)))
> k.py:11:5: error: tiles of different shapes meet: i (64,) and source_load (32,)
>       target.store(i, source.load(metile.arange(0, 32)))
>       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: tile sizes agree within a kernel; reshape or use one size
""",
    ),
    "two sizes in one kernel (O5)": (
        metile.LayoutError,
        """\
j = metile.arange(0, 128)
target.store(i, source.load(i))
target.store(j, source.load(j))
> k.py:11:9: error: [arange] 'j' has 128 elements but 'i' has 64 (k.py:10)
>       j = metile.arange(0, 128)
>           ^^^^^^^^^^^^^^^^^^^^^
> hint: a kernel has one tile size; use the larger one and mask the rest
""",
    ),
    "two sizes in one kernel, beside a thread's number (O5)": (
        metile.LayoutError,
        """\
j = metile.arange(0, 128)
metile.store(y + 0, 1.0, mask=metile.thread_id() + j < 1)
target.store(i, source.load(i))
> k.py:11:9: error: [arange] 'j' has 128 elements but 'i' has 64 (k.py:10)
>       j = metile.arange(0, 128)
>           ^^^^^^^^^^^^^^^^^^^^^
> hint: a kernel has one tile size; use the larger one and mask the rest
""",
    ),
    "more threads than a group has (O6, X9)": (
        metile.LayoutError,
        """\
j = metile.arange(0, 4096)
target.store(j, source.load(j))
> k.py:11:9: error: [arange] 'j' has 4096 elements; a tile without a layout has one per thread: \
a power of two from 32 to 1024
>       j = metile.arange(0, 4096)
>           ^^^^^^^^^^^^^^^^^^^^^^
> hint: use a tile of such a size; mask what is too much, and cover more with more programs (a \
larger grid); or state who owns several elements per thread: \
layout=metile.ThreadLayout.identity(4096, elements_per_thread=4)
""",
    ),
    "fewer threads than a SIMD group (L4)": (
        metile.LayoutError,
        """\
j = metile.arange(0, 16)
target.store(j, source.load(j))
> k.py:11:9: error: [arange] 'j' has 16 elements; a tile without a layout has one per thread: a \
power of two from 32 to 1024
>       j = metile.arange(0, 16)
>           ^^^^^^^^^^^^^^^^^^^^
> hint: use a tile of such a size; mask what is too much, and cover more with more programs (a \
larger grid)
""",
    ),
    "an illegal layout in a kernel (L4)": (
        metile.LayoutError,
        """\
j = metile.arange(0, 64, layout=metile.ThreadLayout((0, 1, 2, 3, 4, 4)))
> k.py:11:37: error: [ThreadLayout] bit_order must be a permutation of 0..5, got (0, 1, 2, 3, 4, \
4): 5 missing, 4 repeated
>       j = metile.arange(0, 64, layout=metile.ThreadLayout((0, 1, 2, 3, 4, 4)))
>                                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: name each of the 6 slot bits exactly once
""",
    ),
    "what is no layout (C1)": (
        metile.CompileError,
        """\
target.store(i, metile.convert_layout(source.load(i), 3))
> k.py:11:59: error: [convert_layout] layout is 3, expected a ThreadLayout
>       target.store(i, metile.convert_layout(source.load(i), 3))
>                                                             ^
""",
    ),
    "a scalar converted (C1)": (
        metile.CompileError,
        """\
target.store(i, metile.convert_layout(n, SWAP))
> k.py:11:43: error: [convert_layout] value is `n`, a runtime i32, expected a tile
>       target.store(i, metile.convert_layout(n, SWAP))
>                                             ^
> hint: a uniform scalar has no owner to convert; load a tile through metile.tensor
""",
    ),
    "a loop with runtime bounds (O5)": (
        metile.OwnershipError,
        """\
j = metile.arange(0, 64, layout=SWAP)
for t in metile.tile_range(0, n, 64):
    target.store(j + t, 1.0)
> k.py:12:14: error: [tile_range] a runtime loop is not available beside explicit thread layouts \
(one is stated in line 11)
>       for t in metile.tile_range(0, n, 64):
>                ^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: unroll it: for i in range(N) with a constexpr N; or leave the layouts out
""",
    ),
    "a matrix product (O5)": (
        metile.CompileError,
        """\
target.store(i, metile.dot(i, i))
> k.py:11:32: error: [dot] a is tile<64xi32>, expected a tile of two dimensions
>       target.store(i, metile.dot(i, i))
>                                  ^
> hint: load it with metile.tile_load(tensor, (row, column), (rows, columns))
""",
    ),
}


def load(folder: Path, text: str) -> ModuleType:
    """Import `text` as the file `k.py`."""
    path = folder / "k.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{folder.name}_k", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kernel(folder: Path, body: str) -> metile.Kernel:
    made: metile.Kernel = load(folder, HEAD + textwrap.indent(body, "    ")).k
    return made


def rejected(made: metile.Kernel, folder: Path, **options: object) -> metile.MetileError:
    """The error of preparing it; a call raises the same, and nothing stays behind in between."""
    x, out = mx.zeros((4096,)), metile.empty((4096,), mx.float32)
    with pytest.raises(metile.MetileError) as first:
        made[(1,)].prepare(x, out, 4096, target="metal", **options)  # type: ignore[arg-type]
    with pytest.raises(metile.MetileError) as second:
        made[(1,)](x, out, 4096, target="cpu", **options)
    assert str(first.value) == str(second.value)
    first.value.args = (str(first.value).replace(f"{folder}/", ""),)
    return first.value


@pytest.mark.parametrize(("kind", "case"), CASES.values(), ids=CASES.keys())
def test_error_text(kind: type[metile.MetileError], case: str, tmp_path: Path) -> None:
    lines = case.splitlines()
    body = "".join(f"{line}\n" for line in lines if not line.startswith(">"))
    error = rejected(kernel(tmp_path, body), tmp_path)
    assert error.args[0] == "\n".join(line[2:] for line in lines if line.startswith(">"))
    assert type(error) is kind


ACROSS = """\
v = metile.convert_layout(source.load(i), ROTATE)
target.store(metile.arange(0, 64, layout=ROTATE), v)
"""
WITHIN = ACROSS.replace("ROTATE", "LANES")


def test_device_staging_with_an_exchange_across_groups(tmp_path: Path) -> None:
    """SPEC C5; within SIMD groups a shuffle needs no staging."""
    schedule = metile.Schedule(staging="device")
    error = rejected(kernel(tmp_path, ACROSS), tmp_path, schedule=schedule)
    assert error.args[0] == textwrap.dedent("""\
        k.py:11:9: error: [convert_layout] Schedule(staging='device'): 'source_load' from \
ThreadLayout((0, 1, 2, 3, 4, 5)) to ThreadLayout((1, 2, 3, 4, 5, 0)) needs an exchange through \
threadgroup memory
              v = metile.convert_layout(source.load(i), ROTATE)
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
        hint: use staging=None or 'threadgroup', or layouts that agree on the simdgroup of every \
element""")
    x, out = mx.arange(64, dtype=mx.float32), metile.empty((64,), metile.f32)
    made = kernel(tmp_path, WITHIN)[(1,)](x, out, 64, schedule=schedule)
    assert mx.array_equal(made, x)


def test_forced_vector_width(tmp_path: Path) -> None:
    """SPEC C5."""
    error = rejected(kernel(tmp_path, ACROSS), tmp_path, schedule=metile.Schedule(vector_width=4))
    assert error.args[0].splitlines()[0] == (
        "k.py:11:9: error: Schedule(vector_width=4) is not available beside explicit thread "
        "layouts (one is stated in line 11)"
    )


def test_forced_shuffle_across_groups(tmp_path: Path) -> None:
    error = rejected(
        kernel(tmp_path, ACROSS), tmp_path, schedule=metile.Schedule(conversion="shuffle")
    )
    assert error.args[0].splitlines()[0] == (
        "k.py:11:9: error: [convert_layout] Schedule(conversion='shuffle'): 'source_load' from "
        "ThreadLayout((0, 1, 2, 3, 4, 5)) to ThreadLayout((1, 2, 3, 4, 5, 0)) crosses simdgroups, "
        "and a shuffle does not"
    )


TWO_DTYPES = """\
v = metile.convert_layout(source.load(i), ROTATE)
j = metile.convert_layout(i, ROTATE)
target.store(j, v)
"""


@pytest.mark.parametrize(
    ("limits", "message", "hint"),
    [
        (
            {"threadgroup_bytes": 511},
            "asks for 512 bytes of threadgroup memory, small has 511: scratch_f32 64 x f32 = 256, "
            "scratch_i32 64 x i32 = 256",
            "use a smaller tile or a narrower dtype, or convert fewer dtypes in one kernel",
        ),
        (
            {"max_threads": 32},
            "asks for 64 threads, small has at most 32 per threadgroup",
            "use a smaller tile, or layouts with more elements per thread",
        ),
    ],
    ids=["memory", "threads"],
)
def test_limits_of_a_small_device(
    limits: dict[str, int],
    message: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """F18, F17, SPEC X9: summed per dtype, and refused before anything is registered.

    One value per thread of each dtype is at most 26 KiB, so 32 KiB need a smaller device to fail.
    """
    made = kernel(tmp_path, TWO_DTYPES)
    x, out = mx.zeros((64,)), metile.empty((64,), metile.f32)
    monkeypatch.setattr(MetalBackend, "target", Target("small", "msl", **limits))  # type: ignore[arg-type]
    with pytest.raises(metile.OutOfResources) as caught:
        made[(1,)].prepare(x, out, 64, target="metal")
    assert str(caught.value).replace(f"{tmp_path}/", "") == "\n".join(
        [
            f"k.py:7:1: error: [k] {message}",
            "  def k(x, y, n, N: metile.constexpr = 64):",
            "  ^^^^^",
            f"hint: {hint}",
        ]
    )
    monkeypatch.setattr(
        MetalBackend, "target", Target("just", "msl", max_threads=64, threadgroup_bytes=512)
    )
    assert "scratch_f32[64]" in made[(1,)].prepare(x, out, 64, target="metal").msl


@pytest.mark.faulty
def test_too_many_buffers(tmp_path: Path) -> None:
    """SPEC X1: 31 buffers, MLX's own included; on the CPU there is no such limit."""
    names = [f"x{number}" for number in range(30)]
    tensors = "".join(f"    {n}t = metile.tensor({n}, 64, access='read')\n" for n in names)
    total = " + ".join(f"{n}t.load(i)" for n in names)
    text = (
        f"import metile_mlx as metile\n\n@metile.kernel\ndef k({', '.join(names)}, n, y):\n"
        f"{tensors}    target = metile.tensor(y, n, access='write')\n"
        f"    i = metile.arange(0, 64)\n    target.store(i, {total})\n"
    )
    made = load(tmp_path, text).k
    arguments = [mx.ones((64,))] * 30 + [64, metile.empty((64,), metile.f32)]
    with pytest.raises(metile.OutOfResources) as caught:
        made[(1,)].prepare(*arguments, target="metal")
    assert str(caught.value).partition(" needs ")[2] == (
        "32 buffers; allowed are 31\nhint: pass fewer arrays and scalars"
    )
    assert made[(1,)](*arguments, backend="cpu")[7].item() == 30


def test_a_kernel_that_writes_nothing(tmp_path: Path) -> None:
    text = """\
import metile_mlx as metile

@metile.kernel
def nothing(x, n):
    source = metile.tensor(x, shape=(n,), access="read")
    value = source.load(metile.arange(0, 32))
"""
    made = load(tmp_path, text).nothing
    with pytest.raises(metile.CompileError) as caught:
        made[(1,)](mx.zeros((32,)), 32)
    assert str(caught.value).replace(f"{tmp_path}/", "") == textwrap.dedent("""\
        k.py:4:1: error: [nothing] the kernel writes nothing
          def nothing(x, n):
          ^^^^^^^^^^^
        hint: declare an output: metile.tensor(out, shape=..., access='write')""")


@pytest.mark.parametrize("name", ["schedule", "backend", "target", "stream", "math_mode"])
def test_reserved_parameter_names(name: str, tmp_path: Path) -> None:
    """SPEC K8."""
    text = f"import metile_mlx as metile\n\n@metile.kernel\ndef k(x, {name}):\n    pass\n"
    with pytest.raises(metile.CompileError) as caught:
        load(tmp_path, text)
    assert str(caught.value).replace(f"{tmp_path}/", "") == "\n".join(
        [
            f"k.py:4:10: error: a kernel parameter can't be named {name!r}, a keyword of the call",
            f"  def k(x, {name}):",
            f"           {'^' * len(name)}",
            "hint: rename it; reserved are schedule, backend, target, stream, math_mode, grid",
        ]
    )


def test_functions_that_can_not_be_kernels() -> None:
    """SPEC K1: no source, no plain function."""
    scope: dict[str, object] = {}
    text = "import metile_mlx as metile\n@metile.kernel\ndef k(x): pass"
    with pytest.raises(metile.CompileError) as caught:
        exec(text, scope)
    assert str(caught.value) == (
        "no source text for 'k' (<string>): kernels are translated from source\n"
        "hint: define it in a file or a notebook cell, not with exec or `python -c`"
    )
    with pytest.raises(metile.CompileError) as caught:
        metile.kernel(lambda x: x)
    assert str(caught.value).splitlines()[0] == "a lambda can't be a kernel"
    with pytest.raises(metile.CompileError) as caught:
        metile.arange(0, 32)
    assert str(caught.value) == (
        "metile.arange was called outside a kernel\n"
        "hint: call it inside a function decorated with @metile.kernel"
    )
