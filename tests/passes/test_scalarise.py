"""One thread's program computes what the tiles mean: memory, masks, parameters (K2, K7, R1)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.context import Stage
from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32
from metile_mlx.errors import VerificationError
from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.dead_code import eliminate_dead_code
from metile_mlx.ir.types import PointerType
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout, transition
from metile_mlx.passes.scalarise import scalarise
from tests.support import simulate
from tests.support.arithmetic import NUMPY
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


STRIPED = ThreadLayout.identity(128, elements_per_thread=4)
ADJACENT = ThreadLayout((5, 6, 0, 1, 2, 3, 4), 3, elements_per_thread=4)


def several_slots(layout: ThreadLayout, moved: ThreadLayout) -> TileProgram:
    """y[i] = x[i] * 2 + i where i % 3 > 0, else 9, converted from one layout to the other."""
    p = TileProgram()
    x, y = p.tensor("x", (100,), "read", dtype=i32), p.tensor("y", (120,), "write", dtype=i32)
    i = p.lanes(128, layout=layout)
    mask = p.compare(CompareKind.GT, p.op(BinaryKind.MOD, i, 3), 0)
    loaded = p.load(x, i, mask=mask, fill=p.number(-1))
    value = p.op(ADD, p.op(MUL, loaded, 2), i)
    nine = p.add(tile.Splat(p.number(9), (128,), layout))
    value = p.add(tile.Select(mask, value, nine), "value")
    transfer = transition(layout, moved)
    if not transfer.is_identity:
        buffer = p.add(planned.Scratch(i32, 128, "scratch_i32"))
        p.emit(planned.ScratchStore(buffer, value, AffineMap.identity(7)))
        p.emit(planned.Barrier("publish"))
        value = p.add(planned.ScratchLoad(buffer, (128,), moved, transfer))
        p.emit(planned.Barrier("release"))
    p.store(y, p.lanes(128, layout=moved), value=value)
    return p


@pytest.mark.parametrize("layout", [STRIPED, ADJACENT])
@pytest.mark.parametrize("moved", [STRIPED, ADJACENT])
def test_each_register_slot_has_its_own_address_mask_and_value(
    layout: ThreadLayout, moved: ThreadLayout
) -> None:
    """SPEC R1: one SSA value per slot; four of them, striped or adjacent, and between the two."""
    func = replace(several_slots(layout, moved).func(), threads=32)
    lowered = eliminate_dead_code(scalarise(func, context()))
    assert len([item for item in walk(lowered.body) if isinstance(item, metal.Load)]) == 4
    names = {v.name for item in walk(lowered.body) for v in item.results}
    assert {"value", "value_1", "value_2", "value_3"} <= names
    x = np.arange(100, dtype=np.int32) * 7
    found, written = simulate.run(lowered, {"x": x, "y": np.zeros(120, np.int32)}, {}, (1,))
    expected = [9 if i % 3 == 0 else (x[i] if i < 100 else -1) * 2 + i for i in range(120)]
    assert found["y"].tolist() == expected
    assert written["y"].all()


def test_a_shuffle_moves_each_register_slot_by_itself() -> None:
    """Lanes change, registers and simdgroups stay."""
    source = ThreadLayout.identity(256, elements_per_thread=4)
    target = ThreadLayout((2, 0, 1, 4, 3, 5, 6, 7), 9, elements_per_thread=4)
    lanes = transition(source, target)
    p = TileProgram()
    x, y = p.tensor("x", (256,), "read"), p.tensor("y", (256,), "write")
    value = p.load(x, p.lanes(256, layout=source))
    p.store(y, p.lanes(256, layout=target), value=p.add(planned.Shuffle(value, target, lanes)))
    func = scalarise(replace(p.func(), threads=64), context())
    given = np.arange(256, dtype=np.float32)
    found, _ = simulate.run(func, {"x": given, "y": given}, {}, (1,))
    assert same_bits(found["y"], given)
