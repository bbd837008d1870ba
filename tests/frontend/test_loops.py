"""Loops with runtime bounds: what a body carries is found by syntax; errors show the line (K5)."""

# ruff: noqa: B007 (kernels name values to look at)

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.dtypes import i32
from metile_mlx.errors import CompileError
from metile_mlx.frontend.build import Scope
from metile_mlx.frontend.translate import Statements
from metile_mlx.ir.core import walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.types import ScalarType
from tests.support.filecheck import filecheck
from tests.support.kernels import load_module, rejection, shown, tile_ir, tile_text


def sums(x, y, n, N: metile.constexpr = 64):
    source = metile.tensor(x, shape=(n,))
    target = metile.tensor(y, shape=(n,), access="write")
    lanes = metile.arange(0, N)
    total = metile.zeros(N, metile.f32)
    count = 0
    # CHECK: %total = tile.splat %c0.1, shape=(64,) : tile<64xf32>
    for i in metile.tile_range(0, n, N):
        # CHECK: %total.1, %count = tile.for start=%c0, end=%n, step=%c64, inits=[%total, %c0]
        # CHECK-NEXT: { (%i: i32, %total.2: tile<64xf32>, %count.1: i32)
        value = source.load(i + lanes)
        total = total + value
        count += 1
        # CHECK: %total.3 = tile.binary add, %total.2, %value : tile<64xf32>
        # CHECK: tile.yield [%total.3, %count.2]
        # CHECK-NEXT: }
    target.store(lanes, total * count)


def test_k5_carried_values_are_found_by_syntax() -> None:
    filecheck(tile_text(sums, "f32*", "f32*", "i32"), sums)


def loops_of(fn: object, *kinds: str, **constexprs: object) -> list[For]:
    func = tile_ir(fn, *kinds, **constexprs)  # type: ignore[arg-type]
    return [item for item in walk(func.body) if isinstance(item, For)]


def names(loop: For) -> list[str]:
    return [arg.name for arg in loop.carried]


def test_what_a_body_leaves_as_it_is_is_not_carried() -> None:
    """Assigned in a branch that is not taken, assigned the same, or never assigned."""

    def k(x, n, FLAG: metile.constexpr = False):
        view = metile.tensor(x, shape=(n,), access="write")
        lanes = metile.arange(0, 64)
        scale, half, total = 2.0, 32, metile.zeros(64, metile.f32)
        same = lanes
        for i in metile.tile_range(0, n, 64):
            if FLAG:
                scale = 3.0
            half = 64 // 2
            same = lanes
            total = total + metile.full(half * 2, scale, metile.f32)
        view.store(same, total * scale, mask=lanes < half)
        assert half == 32

    (loop,) = loops_of(k, "f32*", "i32")
    assert names(loop) == ["total"]
    # With the flag `scale` changes, and is carried as an f32.
    (loop,) = loops_of(k, "f32*", "i32", FLAG=True)
    assert sorted(names(loop)) == ["scale", "total"]


def test_loops_nest_and_inner_results_are_carried_on() -> None:
    def k(x, n):
        view = metile.tensor(x, shape=(n,), access="write")
        total = 0
        for i in metile.tile_range(n):
            for j in metile.tile_range(i, n, 2):
                total = total + i * j
        view.store(metile.arange(0, 64), metile.cast(total, metile.f32))

    outer, inner = loops_of(k, "f32*", "i32")
    assert names(outer) == names(inner) == ["total"]
    assert inner.start is outer.index
    assert inner in outer.body.ops


def test_a_name_of_the_body_alone_has_any_type_there() -> None:
    """`value` was something else before; what it was is not read in the loop."""

    def k(x, n):
        view = metile.tensor(x, shape=(n,), access="read_write")
        lanes = metile.arange(0, 64)
        value = n * 2
        total = metile.zeros(64, metile.f32)
        for i in metile.tile_range(0, n, 64):
            value = view.load(lanes + i)
            total = total + value
        view.store(lanes, total)

    (loop,) = loops_of(k, "f32*", "i32")
    assert names(loop) == ["total"]


def test_a_scalar_that_becomes_each_threads_own_is_so_from_the_start() -> None:
    """One after the other, through both loops; `count` stays uniform."""

    def k(x, n):
        view = metile.tensor(x, shape=(n,), access="write")
        first, second, count = 0, 0, 0
        for i in metile.tile_range(n):
            for j in metile.tile_range(i):
                first, second = second, metile.thread_id() + i
                count += 1
        view.store(metile.thread_id(), metile.cast(first * count, metile.f32))

    for loop in loops_of(k, "f32*", "i32"):
        assert names(loop) == ["first", "second", "count"]
        own = [value.type == ScalarType(i32, uniform=False) for value in loop.carried]
        assert own == [True, True, False]


def nest(depth: int) -> str:
    """Loops in loops: each has a total of its own, which takes what the one inside leaves."""
    lines = ["def k(x, n):"]
    lines += ['    view = metile.tensor(x, shape=(n,), access="write")']
    lines += [f"    t{level} = 0" for level in range(depth + 1)]
    for level in range(depth):
        lines.append("    " * (level + 1) + f"for i{level} in metile.tile_range(n):")
    lines.append("    " * (depth + 1) + f"t{depth} += metile.thread_id()")
    for level in reversed(range(depth)):
        lines.append("    " * (level + 1) + f"t{level} += t{level + 1}")
    return "\n".join([*lines, "    view.store(metile.thread_id(), t0 * 1.0)"]) + "\n"


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_scalars_that_become_own_in_nested_loops_cost_one_translation_more(
    depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each body is translated twice, at any depth; one after the other they took 2**depth."""
    bodies = []
    translated = Statements._runtime_body

    def counted(self: Statements, node: ast.For, names: dict[str, object]) -> Scope:
        bodies.append(node)
        return translated(self, node, names)

    monkeypatch.setattr(Statements, "_runtime_body", counted)
    found = loops_of(load_module(tmp_path, nest(depth)).k, "f32*", "i32")
    assert len(found) == depth
    assert len(bodies) == 2 * depth
    for loop in found:
        assert all(value.type == ScalarType(i32, uniform=False) for value in loop.carried)


def test_a_function_inlined_twice_keeps_what_is_uniform() -> None:
    """Its loop has a sum of each thread's own at one call, and decides a branch at the other."""

    def k(x, n):
        view = metile.tensor(x, shape=(n,), access="write")
        total = 0
        for i in metile.tile_range(n):
            own = summed(metile.thread_id(), n)
            if summed(i, n) > 3:
                total += own
        view.store(metile.thread_id(), metile.cast(total, metile.f32))

    own = [
        [not value.type.uniform for value in loop.carried] for loop in loops_of(k, "f32*", "i32")
    ]
    assert own == [[True], [True], [False]]


@metile.inline
def summed(value, n):
    total = 0
    for i in metile.tile_range(n):
        total += value
    return total


def test_inline_functions_may_loop() -> None:
    def k(x, n):
        view = metile.tensor(x, shape=(n,), access="write")
        view.store(metile.arange(0, 64), triangle(n))

    (loop,) = loops_of(k, "i32*", "i32")
    assert names(loop) == ["total"]


@metile.inline
def triangle(n):
    total = 0
    for i in metile.tile_range(n):
        total += i
    return total


VIEW = """
def k(x, n, f: float, N: metile.constexpr = 64):
    view = metile.tensor(x, shape=(n,), access="read_write")
    lanes = metile.arange(0, 64)
    total = metile.zeros(64, metile.f32)
"""

CASES = {
    "a condition on what becomes each thread's own": """\
    count = 0
    for i in metile.tile_range(n):
        if count > 3:
            total = total + 1
        count += metile.thread_id()
> k.py:9:12: error: `if` needs one value for the whole threadgroup, got `count_gt_3`, a per-thread \
bool
>           if count > 3:
>              ^^^^^^^^^
> hint: use metile.where(condition, a, b), or mask= of load and store
""",
    "a carried dtype changes": """\
    total = 0
    for i in metile.tile_range(n):
        total = total + f
> k.py:9:9: error: 'total' changes its type in the loop of line 8: a runtime i32 before it, a \
runtime f32 after an iteration
>           total = total + f
>           ^^^^^
> hint: cast it: metile.cast(total, metile.i32), or start with f32
""",
    "a carried shape changes": """\
    total = 0.0
    for i in metile.tile_range(0, n, 64):
        total += view.load(lanes + i)
> k.py:9:9: error: 'total' changes its type in the loop of line 8: a runtime f32 before it, a \
tile of 64 f32 after an iteration
>           total += view.load(lanes + i)
>           ^^^^^
> hint: start with a tile: total = metile.full((64,), ..., metile.f32)
""",
    "a carried shape changes in the last of two assignments": """\
    for i in metile.tile_range(0, n, 64):
        total = total + 1
        if N > 3:
            total = metile.reshape(total, (8, 8))
> k.py:10:13: error: 'total' changes its type in the loop of line 7: a tile of 64 f32 before it, \
a tile of 8x8 f32 after an iteration
>               total = metile.reshape(total, (8, 8))
>               ^^^^^
> hint: give one of them another name
""",
    "a carried layout changes": """\
    for i in metile.tile_range(0, n, 64):
        total = metile.convert_layout(total, metile.ThreadLayout.identity(64))
> k.py:8:9: error: 'total' has another stated layout after an iteration of the loop in line 7: \
ThreadLayout((0, 1, 2, 3, 4, 5)), and none before
>           total = metile.convert_layout(total, metile.ThreadLayout.identity(64))
>           ^^^^^
> hint: a runtime loop is not available beside explicit thread layouts; unroll it over \
range(constexpr)
""",
    "a tuple is carried": """\
    state = (total, 0)
    for i in metile.tile_range(0, n, 64):
        state = (state[0] + 1, i)
> k.py:9:18: error: 'state' is a tuple before the loop of line 8 and assigned in it: a loop \
carries tiles, scalars and numbers
>           state = (state[0] + 1, i)
>                    ^^^^^
> hint: give it another name in the loop, or unroll over range(constexpr)
""",
    "assigned in the loop only": """\
    for i in metile.tile_range(0, n, 64):
        last = i
    view.store(lanes, last)
> k.py:9:23: error: 'last' is assigned in the loop of line 7, which may run no iteration
>       view.store(lanes, last)
>                         ^^^^
> hint: assign it before the loop too
""",
    "the index after the loop": """\
    for i in metile.tile_range(0, n, 64):
        total += 1
    view.store(lanes, i)
> k.py:9:23: error: 'i' is the index of the loop in line 7, which may run no iteration
>       view.store(lanes, i)
>                         ^
> hint: compute it from the bounds of the loop
""",
    "two types after the loop": """\
    value = n
    for i in metile.tile_range(0, n, 64):
        value = total + 1
        total = value
    view.store(lanes, value)
> k.py:11:23: error: 'value' is a runtime i32 before the loop of line 8 and a tile of 64 f32 \
after an iteration: after the loop it is neither
>       view.store(lanes, value)
>                         ^^^^^
> hint: give one of them another name
""",
    "a step of zero": """\
    for i in metile.tile_range(0, n, N - 64):
        total += 1
> k.py:7:38: error: [tile_range] step is 0, expected at least 1
>       for i in metile.tile_range(0, n, N - 64):
>                                        ^^^^^^
> hint: count up, and compute what counts down from it: n - 1 - i
""",
    "a negative step": """\
    for i in metile.tile_range(n, 0, step=-1):
        total += 1
> k.py:7:43: error: [tile_range] step is -1, expected at least 1
>       for i in metile.tile_range(n, 0, step=-1):
>                                             ^^
> hint: count up, and compute what counts down from it: n - 1 - i
""",
    "a bound that is a tile": """\
    for i in metile.tile_range(0, lanes):
        total += 1
> k.py:7:35: error: [tile_range] end is `lanes`, a tile of 64 i32, expected a uniform i32 scalar
>       for i in metile.tile_range(0, lanes):
>                                     ^^^^^
> hint: bounds are ints, runtime ints, program_id, and arithmetic on them
""",
    "a bound that is a float": """\
    for i in metile.tile_range(f, n):
        total += 1
> k.py:7:32: error: [tile_range] start is `f`, a runtime f32, expected a uniform i32 scalar
>       for i in metile.tile_range(f, n):
>                                  ^
> hint: cast it: metile.cast(value, metile.i32)
""",
    "break": """\
    for i in metile.tile_range(0, n, 64):
        if N > 3:
            break
> k.py:9:13: error: break in a loop over tile_range
>               break
>               ^^^^^
> hint: end it earlier: metile.tile_range(start, metile.minimum(end, ...))
""",
    "return": """\
    for i in metile.tile_range(0, n, 64):
        return
> k.py:8:9: error: return inside a runtime loop: whether it happens is not known at compile time
>           return
>           ^^^^^^
> hint: put the statements that follow under the `if`, or use masks
""",
    "continue under a runtime if": """\
    for i in metile.tile_range(0, n, 64):
        if i > 3:
            continue
> k.py:9:13: error: continue inside a runtime `if`: whether it happens is not known at compile time
>               continue
>               ^^^^^^^^
> hint: put the statements that follow under the `if`, or use masks
""",
    "two indices": """\
    for i, j in metile.tile_range(0, n, 64):
        pass
> k.py:7:9: error: a loop over tile_range has one index
>       for i, j in metile.tile_range(0, n, 64):
>           ^^^^
> hint: for i in metile.tile_range(...)
""",
    "for ... else": """\
    for i in metile.tile_range(0, n, 64):
        pass
    else:
        total = 1
> k.py:10:9: error: for ... else is not allowed in a kernel
>           total = 1
>           ^^^^^^^^^
> hint: put the statements after the loop
""",
    "a tensor declared in a loop (K2)": """\
    for i in metile.tile_range(0, n, 64):
        other = metile.tensor(x, shape=(n,), access="read_write")
> k.py:8:17: error: [tensor] declared inside a loop; tensors are declared at kernel entry
>           other = metile.tensor(x, shape=(n,), access="read_write")
>                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
> hint: move the declaration to the top of the kernel
""",
    "a load that the next iteration makes after a store (K7)": """\
    for i in metile.tile_range(0, n, 64):
        total = view.load(lanes + i)
        view.store(lanes + i, total + 1)
> k.py:8:17: error: [load] x is stored to in line 9; in the next iteration of the loop a load \
can't see stores of the same launch
>           total = view.load(lanes + i)
>                   ^^^^^^^^^^^^^^^^^^^^
> hint: store to another array, or load all that is needed before the loop
""",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_error_text(case: str, tmp_path: Path) -> None:
    lines = case.splitlines()
    body = "\n".join(line for line in lines if not line.startswith(">")) + "\n"
    expected = "\n".join(line[2:] for line in lines if line.startswith(">"))
    error = rejection(tmp_path, VIEW + body, "f32*", "i32", "f32")
    assert shown(error, tmp_path) == expected
    assert isinstance(error, CompileError)


def test_statements_that_leave_an_unrolled_loop_inside_are_allowed() -> None:
    def k(x, n):
        view = metile.tensor(x, shape=(n,), access="write")
        total = 0
        for i in metile.tile_range(n):
            for j in range(4):
                if j == 2:
                    break
                total += j * i
            if True:
                continue
            total = 7
        view.store(metile.arange(0, 64), total)

    (loop,) = loops_of(k, "i32*", "i32")
    assert names(loop) == ["total"]
