"""Every index is checked where it can fail, every offset is exact (SPEC K2, R5, X8)."""

from __future__ import annotations

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.dtypes import f32, i32
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import definitions, walk
from tests.support import simulate
from tests.support.arithmetic import Array
from tests.support.execute import context, execute, same_bits
from tests.support.tile_program import TileProgram, transpose8

ADD, SUB, MUL = BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL


def test_transpose8_keeps_only_the_batch_check() -> None:
    """SPEC R5: rows and columns of the tile can't leave their extents, on either side."""
    ctx = context()
    func = lower(transpose8(scalar=True).func(), ctx)
    assert ctx.report.bounds_checks_removed == 4
    assert len([item for item in walk(func.body) if isinstance(item, metal.Compare)]) == 1


def test_contiguous_offsets_of_a_permuted_tile_cost_one_addition() -> None:
    """(t // 8) * 8 + t % 8 is t: on both sides of the transpose."""
    func = lower(transpose8(scalar=True).func(), context())
    loads = [item for item in walk(func.body) if isinstance(item, metal.Load)]
    stores = [item for item in walk(func.body) if isinstance(item, metal.Store)]
    assert loads[0].index is stores[0].index
    offset = definitions(func)[loads[0].index]
    assert isinstance(offset, metal.Binary)
    assert offset.kind is ADD
    shared, thread = offset.operands()
    assert str(shared.type) == "u32", "the uniform part is one value"
    assert isinstance(definitions(func)[thread], metal.ThreadIndex)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 63, 64, 65, 70])
def test_exactly_the_elements_in_bounds_are_stored(size: int) -> None:
    """F52, F55: n of 64 lanes, and nothing outside is read: the simulator traps it."""
    p = TileProgram()
    n = p.scalar("n")
    source, result = p.tensor("source", (n,), "read"), p.tensor("result", (n,), "write")
    i = p.lanes(64)
    p.store(result, i, value=p.load(source, i))
    x = np.arange(size, dtype=np.float32)
    found, written = execute(p.func(), {"source": x, "result": x}, {"n": size})
    assert found["result"][:64].tolist() == x[:64].tolist()
    assert written["result"].sum() == min(size, 64)


@pytest.mark.parametrize("start", [-70, -64, -63, -1, 0, 1, 62, 63, 64])
@pytest.mark.parametrize("extent", [1, 62, 63, 64, 65])
def test_checks_left_out_for_constants_are_exactly_those_that_cannot_fail(
    start: int, extent: int
) -> None:
    """Each end of the tile one element inside, on and outside each end of the array (SPEC R5)."""
    p = TileProgram()
    result = p.tensor("result", (extent,), "write", dtype=i32)
    i = p.lanes(64, start)
    p.store(result, i, value=i)
    ctx = context()
    _, written = execute(p.func(), {"result": np.zeros(extent, np.int32)}, ctx=ctx)
    inside = [t for t in range(start, start + 64) if 0 <= t < extent]
    assert np.flatnonzero(written["result"]).tolist() == inside
    assert ctx.report.bounds_checks_removed == (len(inside) == 64)


@pytest.mark.parametrize(("rows", "columns"), [(1, 37), (5, 3), (0, 4), (3, 0), (2, 64)])
def test_ragged_copies_stay_inside(rows: int, columns: int) -> None:
    """F55: a grid and a tile larger than the array, extents given at run time."""
    p = TileProgram()
    m, n = p.scalar("m"), p.scalar("n")
    source, result = p.tensor("source", (m, n), "read"), p.tensor("result", (m, n), "write")
    row, i = p.program_id(), p.lanes(64)
    p.store(result, row, i, value=p.load(source, row, i))
    x = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    found, written = execute(
        p.func(), {"source": x, "result": x}, {"m": rows, "n": columns}, (rows + 2,)
    )
    assert same_bits(found["result"], x)
    assert written["result"].all()


@pytest.mark.parametrize("index_bits", [32, 64])
@pytest.mark.parametrize("start", [-70, -5, 0, 3, 2**31 - 20])
def test_negative_and_wrapping_indices_are_out_of_bounds(start: int, index_bits: int) -> None:
    """i32 indices wrap past 2**31 - 1 to negative numbers, which no element has (SPEC K4)."""
    p = TileProgram()
    source, result = p.tensor("source", (50,), "read"), p.tensor("result", (64,), "write")
    i = p.lanes(64)
    fill = p.number(-1.0, f32)
    at = p.op(ADD, i, p.scalar("start"))
    p.store(result, i, value=p.load(source, at, fill=fill))
    x = np.arange(50, dtype=np.float32)
    arrays = {"source": x, "result": np.zeros(64, np.float32)}
    found, _ = execute(p.func(), arrays, {"start": start}, ctx=context(index_bits))
    expected = [x[start + t] if 0 <= start + t < 50 else -1 for t in range(64)]
    assert found["result"].tolist() == expected


@pytest.mark.parametrize("extent", [-1, -(2**31)])
def test_a_negative_extent_holds_nothing(extent: int) -> None:
    """An extent given at run time may be any i32; the unsigned comparison must not trust it."""
    p = TileProgram()
    n = p.scalar("n")
    result = p.tensor("result", (n,), "write", (1,))
    i = p.op(SUB, p.lanes(64), 32)
    p.store(result, i, value=p.add(tile.Cast(i, f32)))
    _, written = execute(p.func(), {"result": np.zeros(64, np.float32)}, {"n": extent})
    assert not written["result"].any()


@pytest.mark.parametrize(
    ("strides", "size"), [((1,), 64), ((3,), 190), ((0,), 1), ((2,), 128), ((65,), 64 * 65)]
)
def test_declared_strides_are_in_elements(strides: tuple[int], size: int) -> None:
    p = TileProgram()
    source, result = p.tensor("source", (64,), "read", strides), p.tensor("result", (64,), "write")
    i = p.lanes(64)
    p.store(result, i, value=p.load(source, i))
    x = np.arange(size, dtype=np.float32)
    found, _ = execute(p.func(), {"source": x, "result": np.zeros(64, np.float32)})
    assert found["result"].tolist() == [x[t * strides[0]] for t in range(64)]


@pytest.mark.parametrize("index_bits", [32, 64])
def test_strides_given_at_run_time(index_bits: int) -> None:
    """A transposed view: neither stride is known, both indices hold thread bits."""
    p = TileProgram()
    s0, s1 = p.scalar("s0"), p.scalar("s1")
    source = p.tensor("source", (8, 8), "read", (s0, s1))
    result = p.tensor("result", (64,), "write")
    i = p.lanes(64)
    row, column = p.op(BinaryKind.FLOORDIV, i, 8), p.op(BinaryKind.MOD, i, 8)
    reverse = p.op(SUB, p.number(7), column)
    p.store(result, i, value=p.load(source, row, reverse))
    x = np.arange(8 * 11, dtype=np.float32)
    for strides in ((11, 1), (1, 8), (0, 3)):
        found, _ = execute(
            p.func(),
            {"source": x, "result": np.zeros(64, np.float32)},
            {"s0": strides[0], "s1": strides[1]},
            ctx=context(index_bits),
        )
        expected = [x[t // 8 * strides[0] + (7 - t % 8) * strides[1]] for t in range(64)]
        assert found["result"].tolist() == expected


@pytest.mark.parametrize("index_bits", [32, 64])
def test_every_part_of_an_index_meets_a_stride_given_at_run_time(index_bits: int) -> None:
    """Index base + 3 + t, and a row of 2, both times strides nobody knows."""
    p = TileProgram()
    s0, s1 = p.scalar("s0"), p.scalar("s1")
    source = p.tensor("source", (4, 100), "read", (s0, s1))
    result = p.tensor("result", (64,), "write")
    i = p.lanes(64)
    at = p.op(ADD, p.op(ADD, i, p.scalar("base")), 3)
    p.store(result, i, value=p.load(source, 2, at))
    x = np.arange(700, dtype=np.float32)
    for base, s0_, s1_ in ((5, 100, 1), (0, 7, 3)):
        scalars = {"s0": s0_, "s1": s1_, "base": base}
        arrays = {"source": x, "result": np.zeros(64, np.float32)}
        found, _ = execute(p.func(), arrays, scalars, ctx=context(index_bits))
        assert found["result"].tolist() == [x[2 * s0_ + (base + 3 + t) * s1_] for t in range(64)]


def test_descending_and_mixed_indices() -> None:
    """Negative coefficients in one dimension and positive ones in the other cancel or don't."""
    p = TileProgram()
    source = p.tensor("source", (64, 64), "read")
    result = p.tensor("result", (64,), "write")
    i = p.lanes(64)
    down = p.op(SUB, p.number(63), i)
    p.store(result, i, value=p.load(source, i, down))
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    for bits in (32, 64):
        arrays = {"source": x, "result": np.zeros(64, np.float32)}
        found, _ = execute(p.func(), arrays, ctx=context(bits))
        assert found["result"].tolist() == [x[t, 63 - t] for t in range(64)]


def test_bounds_over_32768_are_not_narrowed() -> None:
    """F23: column 39,999 of 40,000 is valid, column 40,000 is not."""
    p = TileProgram()
    n = p.scalar("n")
    result = p.tensor("result", (n,), "write", dtype=i32)
    start = p.op(MUL, p.program_id(), 1024)
    i = p.lanes(1024, start)
    p.store(result, i, value=i)
    found, written = execute(p.func(), {"result": np.zeros(40_960, np.int32)}, {"n": 40_000}, (40,))
    assert found["result"][:40_000].tolist() == list(range(40_000))
    assert written["result"][39_999]
    assert not written["result"][40_000:].any()


def test_the_address_of_the_last_element_is_exact_beyond_32_bits() -> None:
    """F21: rows = 2**20, D = 4096; a view of one stored element stands for the array."""
    rows, width = 2**20, 4096
    p = TileProgram()
    m = p.scalar("m")
    source = p.tensor("source", (m, width), "read")
    result = p.tensor("result", (64,), "write")
    i = p.lanes(64)
    column = p.op(ADD, i, width - 64)
    p.store(result, i, value=p.load(source, p.op(ADD, p.program_id(), rows - 1), column))
    func = lower(p.func(), context(64))
    seen: list[Array] = []

    def watch(item: object, arrays: tuple[Array, ...]) -> None:
        seen.extend(a for a in arrays if a.dtype == np.uint64 and a.size == 64)

    array = np.broadcast_to(np.ones(1, np.float32), (rows * width,))
    arrays = {"source": array, "result": np.zeros(64, np.float32)}
    simulate.run(func, arrays, {"m": rows}, (1,), watch)
    assert [int(a[-1]) for a in seen][-1] == 2**32 - 1
    assert seen[-1].tolist() == list(range(2**32 - 64, 2**32))


def test_offsets_are_u64_only_where_asked_for() -> None:
    """SPEC X8: the width is the host's choice."""
    for bits, name in ((32, "u32"), (64, "u64")):
        func = lower(transpose8(scalar=True).func(), context(bits))
        found = {
            str(item.index.type)
            for item in walk(func.body)
            if isinstance(item, metal.Load | metal.Store)
        }
        assert found == {f"thread<{name}>"}
