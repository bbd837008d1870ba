"""One thread's program computes what the tiles mean: memory, masks, parameters (K2, K7, R1)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Stage
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32
from metile_mlx.errors import VerificationError
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Func, definitions, walk
from metile_mlx.ir.types import PointerType
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.scalarise import scalarise
from tests.support import simulate
from tests.support.arithmetic import NUMPY, Array
from tests.support.build import conversion_program
from tests.support.execute import context, execute, random_bits, same_bits
from tests.support.memory import poisoned
from tests.support.tile_program import TileProgram, transpose8

ADD, SUB, MUL = BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL


def ops(func: Func, kind: type) -> list[object]:
    return [item for item in walk(lower(func, context()).body) if isinstance(item, kind)]


@pytest.mark.parametrize("index_bits", [32, 64])
@pytest.mark.parametrize("dtype", [f16, bf16, f32, i32, u32])
def test_transpose8_equals_numpy(dtype: DType, index_bits: int) -> None:
    """The seed's kernel, more programs than batches: the rest stores nothing."""
    x = random_bits(dtype, 5 * 64, 1).reshape(5, 8, 8)
    arrays = {"source": x, "result": np.zeros_like(x)}
    func = transpose8(dtype=dtype, scalar=True).func()
    found, written = execute(func, arrays, {"n": 5}, (7,), context(index_bits))
    assert same_bits(found["result"], np.ascontiguousarray(x.transpose(0, 2, 1)))
    assert written["result"].all()


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


@pytest.mark.parametrize("dtype", [f16, bf16, f32, i32, u32, bool_])
def test_masked_lanes_load_the_fill_and_store_nothing(dtype: DType) -> None:
    """F52: a mask of every third lane; no fill stated means zero (SPEC K2)."""
    p = TileProgram()
    source = p.tensor("source", (64,), "read", dtype=dtype)
    zero, filled = (p.tensor(name, (64,), "write", dtype=dtype) for name in ("zero", "filled"))
    some = p.tensor("some", (64,), "write", dtype=dtype)
    i = p.lanes(64)
    mask = p.compare(CompareKind.NE, p.op(BinaryKind.MOD, i, 3), 0)
    fill = p.number(True if dtype is bool_ else 1, dtype)
    p.store(zero, i, value=p.load(source, i, mask=mask))
    p.store(filled, i, value=p.load(source, i, mask=mask, fill=fill))
    p.store(some, i, value=p.load(source, i), mask=mask)
    x = random_bits(dtype, 64, 2)
    arrays = {name: x for name in ("source", "zero", "filled", "some")}
    found, written = execute(p.func(), arrays)
    keep = np.arange(64) % 3 != 0
    one = np.array([0x3F80 if dtype is bf16 else 1]).astype(x.dtype)
    assert same_bits(found["zero"], np.where(keep, x, np.zeros(1, x.dtype)))
    assert same_bits(found["filled"], np.where(keep, x, one))
    assert same_bits(found["some"][keep], x[keep])
    assert written["some"].tolist() == keep.tolist()


def test_a_row_of_negative_numbers_keeps_its_maximum() -> None:
    """F53: lanes past the row carry the fill the kernel states, not what memory holds there."""
    p = TileProgram()
    source, result = p.tensor("source", (5,), "read"), p.tensor("result", (64,), "write")
    i = p.lanes(64)
    p.store(result, i, value=p.load(source, i, fill=p.number(float("-inf"), f32)))
    x = -np.arange(1, 6, dtype=np.float32)
    found, _ = execute(p.func(), {"source": x, "result": np.zeros(64, np.float32)})
    assert found["result"].max() == -1


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


def test_loads_of_a_read_write_tensor_see_the_array_as_given() -> None:
    """SPEC K7: reversed in place by two simdgroups, each reading what the other stores."""
    p = TileProgram()
    x = p.tensor("x", (64,), "read_write")
    i = p.lanes(64)
    value = p.load(x, p.op(SUB, p.number(63), i))
    p.store(x, i, value=value)
    func = lower(p.func(), context())
    assert [(str(v.type), v.name) for v in func.params] == [
        ("ptr<f32>", "x"),
        ("ptr<mut f32>", "x_out"),
    ]
    given = np.arange(64, dtype=np.float32)
    found, _ = simulate.run(func, {"x": given}, {}, (1,))
    assert found["x_out"].tolist() == given[::-1].tolist()
    assert given.tolist() == list(range(64))


def test_a_written_mask_tells_what_was_stored() -> None:
    """SPEC K7: True under the same mask and at the same element as each store."""
    p = TileProgram()
    x, y = p.tensor("x", (50,), "read_write"), p.tensor("y", (50,), "write")
    i = p.lanes(64)
    odd = p.compare(CompareKind.EQ, p.op(BinaryKind.MOD, i, 2), 1)
    p.store(x, i, value=p.load(x, i), mask=odd)
    p.store(y, i, value=p.load(x, i), mask=odd)
    func = lower(p.func(), context(masked=("x",)))
    assert [value.name for value in func.params] == ["x", "x_out", "x_written", "y"]
    given = np.arange(50, dtype=np.float32)
    found, _ = simulate.run(func, {"x": given, "y": given}, {}, (1,))
    assert found["x_written"].dtype == bool
    assert found["x_written"].tolist() == [t % 2 == 1 for t in range(50)]


def test_unstored_elements_are_visible_as_poison() -> None:
    """F27: what nobody stores is not there by accident."""
    p = TileProgram()
    result = p.tensor("result", (61,), "write")
    i = p.lanes(64)
    p.store(result, i, value=p.add(tile.Cast(i, f32)))
    found, written = execute(p.func(), {"result": np.zeros(64, np.float32)})
    assert found["result"][:61].tolist() == list(range(61))
    assert set(found["result"][61:]) == set(poisoned(1, f32))
    assert written["result"].tolist() == [True] * 61 + [False] * 3


def test_parameters_are_inputs_then_outputs_in_python_order() -> None:
    """Scalars stay where they are; an array no tensor declares is dropped."""
    p = TileProgram()
    a = p.tensor("a", (64,), "write")
    p.param("unused", PointerType(f32))
    n = p.scalar("n")
    b, c = p.tensor("b", (n,), "read_write"), p.tensor("c", (64,), "read")
    i = p.lanes(64)
    p.store(a, i, value=p.load(c, i))
    p.store(b, i, value=p.load(c, i))
    func = lower(p.func(), context(masked=("b",)))
    assert [v.name for v in func.params] == ["n", "b", "c", "a", "b_out", "b_written"]


def test_a_uniform_load_stays_uniform_and_a_uniform_store_is_one_threads() -> None:
    """One value for the whole threadgroup is loaded once, broadcast, and stored once."""
    p = TileProgram()
    source, result = p.tensor("source", (4,), "read"), p.tensor("result", (4,), "write")
    pid = p.program_id()
    value = p.load(source, pid)
    p.store(result, pid, value=p.add(tile.Binary(ADD, value, value)))
    tiles = p.tensor("tiles", (4, 64), "write")
    i = p.lanes(64)
    p.store(tiles, pid, i, value=p.add(tile.Binary(ADD, value, p.add(tile.Cast(i, f32)))))
    (load,) = ops(p.func(), metal.Load)
    assert str(load.result.type) == "f32"  # type: ignore[attr-defined]
    x = np.array([1, 2, 3, 4], np.float32)
    arrays = {"source": x, "result": x, "tiles": np.zeros((4, 64), np.float32)}
    found, _ = execute(p.func(), arrays, grid=(6,))
    assert found["result"].tolist() == [2, 4, 6, 8]
    assert np.array_equal(found["tiles"], x[:, None] + np.arange(64))


def test_masks_known_when_compiling_are_simplified() -> None:
    """A mask that is always true needs no fill, one that never is no memory."""
    p = TileProgram()
    source, result = p.tensor("source", (64,), "read"), p.tensor("result", (64,), "write")
    i = p.lanes(64)
    always = p.compare(CompareKind.LT, i, 64)
    never = p.compare(CompareKind.LT, i, 0)
    p.store(result, i, value=p.load(source, i, mask=always), mask=always)
    p.store(result, i, value=p.load(source, i, mask=never), mask=never)
    outside = p.load(source, p.op(ADD, i, 64), fill=p.number(2.0, f32))
    p.store(result, i, value=outside, mask=never)
    loads, stores = ops(p.func(), metal.Load), ops(p.func(), metal.Store)
    assert [item.mask for item in (*loads, *stores)] == [None, None]  # type: ignore[attr-defined]


def test_all_three_program_axes_are_honoured() -> None:
    """F20: a grid of (2, 3, 5), value x + 10 y + 100 z."""
    p = TileProgram()
    result = p.tensor("result", (5, 3, 2, 32), "write", dtype=i32)
    x, y, z = (p.program_id(axis) for axis in range(3))
    tens, hundreds = p.op(MUL, y, 10), p.op(MUL, z, 100)
    i = p.lanes(32)
    value = p.op(ADD, p.add(tile.Splat(p.op(ADD, p.op(ADD, x, tens), hundreds), (32,))), 0)
    p.store(result, z, y, x, i, value=value)
    found, written = execute(
        p.func(), {"result": np.zeros((5, 3, 2, 32), np.int32)}, grid=(2, 3, 5)
    )
    for z_, y_, x_ in product(range(5), range(3), range(2)):
        assert (found["result"][z_, y_, x_] == x_ + 10 * y_ + 100 * z_).all()
    assert written["result"].all()


def test_the_extent_of_the_grid_is_num_programs() -> None:
    p = TileProgram()
    result = p.tensor("result", (3, 64), "write", dtype=i32)
    pid, i = p.program_id(), p.lanes(64)
    count = p.add(tile.NumPrograms(0))
    p.store(result, pid, i, value=p.op(ADD, i, count))
    found, _ = execute(p.func(), {"result": np.zeros((3, 64), np.int32)}, grid=(3,))
    assert (found["result"] == np.arange(64) + 3).all()


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


def test_branches_on_a_runtime_scalar() -> None:
    """SPEC K5: one side uniform, the other a value of each thread's own."""
    p = TileProgram()
    flag = p.scalar("flag", bool_)
    source, result = p.tensor("source", (64,), "read"), p.tensor("result", (64,), "write")
    i = p.lanes(64)
    outer = p.begin()
    loaded = p.load(source, i)
    then = p.end(outer, p.add(tile.Binary(ADD, loaded, loaded)))
    outer = p.begin()
    otherwise = p.end(outer, p.add(tile.Splat(p.number(5.0, f32), (64,))))
    (value,) = p.emit(tile.If(flag, then, otherwise))
    p.store(result, i, value=value)
    x = np.arange(64, dtype=np.float32)
    for chosen, expected in ((True, 2 * x), (False, np.full(64, 5, np.float32))):
        found, _ = execute(p.func(), {"source": x, "result": x}, {"flag": chosen})
        assert same_bits(found["result"], expected.astype(np.float32))


def test_values_keep_their_names() -> None:
    """Facts of the report refer to them; a generated value has a name of its own."""
    p = TileProgram()
    source, result = p.tensor("source", (64,), "read"), p.tensor("result", (64,), "write")
    i = p.arange(64, name="position")
    value = p.add(tile.Load(source, (i,)), "value")
    doubled = p.add(tile.Binary(ADD, value, value), "doubled")
    p.store(result, i, value=doubled)
    func = lower(p.func(), context())
    names = {v.name for item in walk(func.body) for v in item.results}
    assert {"value", "doubled"} <= names


def test_each_op_keeps_its_source_line() -> None:
    p = transpose8(scalar=True)
    func = lower(p.func(), context())
    lines = {item.loc.line for item in p.builder.ops if isinstance(item, tile.Load | tile.Store)}
    found = {
        item.loc.line for item in walk(func.body) if isinstance(item, metal.Load | metal.Store)
    }
    assert found == lines


def test_a_conversion_that_nobody_planned_is_refused() -> None:
    func = conversion_program(ThreadLayout.identity(64), ThreadLayout((1, 0, 2, 3, 4, 5)))
    with pytest.raises(VerificationError, match="which needs a planned program"):
        scalarise(lower(func, context(), Stage.OWNED), context())


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_small_floats_round_after_every_operation(dtype: DType) -> None:
    """SPEC K4: (1 + e) - 1 with e below half a unit of the dtype is 0 there, not e."""
    p = TileProgram()
    source = p.tensor("source", (64,), "read", dtype=dtype)
    result = p.tensor("result", (64,), "write", dtype=dtype)
    i = p.lanes(64)
    one = p.number(1.0, dtype)
    value = p.add(tile.Binary(SUB, p.add(tile.Binary(ADD, p.load(source, i), one)), one))
    p.store(result, i, value=p.unary(UnaryKind.NEG, p.unary(UnaryKind.NEG, value)))
    tiny = np.full(64, 0x3A00 if dtype is bf16 else np.float16(2**-12), NUMPY[dtype])
    found, _ = execute(p.func(), {"source": tiny, "result": tiny})
    assert found["result"].tolist() == [0] * 64
