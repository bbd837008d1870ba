"""Kernels translate to the tile IR their text means (SPEC K1-K5), each op at its place."""

# ruff: noqa: F841, SIM108 (kernels name values to look at)

from __future__ import annotations

import inspect
import math
from pathlib import Path

import pytest

import metile_mlx.frontend.language as metile
import metile_mlx.frontend.language as tiles
from metile_mlx.dtypes import f32
from metile_mlx.errors import CompileError
from metile_mlx.frontend.language import arange as count_up
from metile_mlx.frontend.language import constexpr, program_id
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, UnaryKind
from metile_mlx.ir.core import walk
from metile_mlx.ir.printer import print_func
from metile_mlx.ir.types import TileType
from tests.support.filecheck import filecheck
from tests.support.kernels import load_module, tile_ir, tile_text

SCALE = 0.5
ROWS = (1, 2)


def transpose8(source, destination, batches, OUTPUT_LAYOUT: metile.constexpr):
    inputs = metile.tensor(source, shape=(batches, 8, 8), access="read")
    # CHECK: kernel @transpose8(%source: ptr<f32>, %destination: ptr<f32>, %batches: i32) {
    # CHECK: %inputs = tile.tensor param=%source, shape=[%batches, %c8, %c8],
    # CHECK-SAME: strides=[%c64, %c8, %c1], access='read' : tensor<3d f32, read>
    outputs = metile.tensor(destination, shape=(batches, 8, 8), access="write")
    # CHECK-NEXT: %outputs = tile.tensor param=%destination, shape=[%batches, %c8, %c8]
    batch = metile.program_id(0)
    # CHECK-NEXT: %batch = tile.program_id axis=0 : i32
    positions = metile.arange(0, 64)
    # CHECK: %positions = tile.arange start=%c0, size=64 : tile<64xi32>
    values = inputs.load((batch, positions // 8, positions % 8))
    # CHECK-NEXT: %positions_div_8 = tile.binary floordiv, %positions, %c8 : tile<64xi32>
    # CHECK-NEXT: %positions_mod_8 = tile.binary mod, %positions, %c8 : tile<64xi32>
    # CHECK-NEXT: %values = tile.load %inputs, [%batch, %positions_div_8, %positions_mod_8]
    converted = metile.convert_layout(values, OUTPUT_LAYOUT)
    # CHECK-NEXT: %converted = tile.convert %values, layout=ThreadLayout((3, 4, 5, 0, 1, 2))
    owned = metile.arange(0, 64, layout=OUTPUT_LAYOUT)
    # CHECK-NEXT: %owned = tile.arange start=%c0, size=64, layout=ThreadLayout((3, 4, 5, 0, 1, 2))
    outputs.store((batch, owned % 8, owned // 8), converted)
    # CHECK: tile.store %outputs, [%batch, %owned_mod_8, %owned_div_8], %converted
    # CHECK-NEXT: }


LAYOUT = metile.ThreadLayout((3, 4, 5, 0, 1, 2))


def test_seed_transpose_prints_as_written() -> None:
    filecheck(tile_text(transpose8, "f32*", "f32*", "i32", OUTPUT_LAYOUT=LAYOUT), transpose8)


def test_filecheck_helper_can_fail() -> None:
    with pytest.raises(AssertionError):
        filecheck("kernel @other", transpose8)
    with pytest.raises(ValueError, match="no CHECK line"):
        filecheck("anything", "def k(): pass")


def test_every_op_stands_at_its_expression() -> None:
    func = tile_ir(transpose8, "f32*", "f32*", "i32", OUTPUT_LAYOUT=LAYOUT)
    lines, first = inspect.getsourcelines(transpose8)
    for op in walk(func.body):
        assert op.loc.file == __file__
        assert lines[op.loc.line - first].rstrip("\n") == op.loc.text
    spans = {
        value.name: op.loc.text[op.loc.column - 1 : op.loc.end_column - 1]
        for op in walk(func.body)
        for value in op.results
    }
    assert spans["positions_mod_8"] == "positions % 8"
    assert spans["values"] == "inputs.load((batch, positions // 8, positions % 8))"
    assert func.loc.text[func.loc.column - 1 : func.loc.end_column - 1] == "def transpose8"


def aliased(x, N: constexpr):
    view = tiles.tensor(x, shape=N, access="read_write")
    rows = program_id(0) * N + count_up(0, N)
    view.store(rows, view.load(rows) * SCALE)


def test_names_resolve_under_any_alias() -> None:
    ops = [op.opcode for op in walk(tile_ir(aliased, "f16*", N=64).body)]
    assert ops.count("tile.arange") == 1
    assert ops[-1] == "tile.store"


def test_nested_functions_and_closures_translate() -> None:
    factor = 3

    def outer():
        def k(x):
            v = metile.tensor(x, shape=(32,), access="read_write")
            i = metile.arange(0, 32)
            v.store(i, v.load(i) * factor)

        return k

    assert "value=3.0, dtype=metile.f32" in tile_text(outer(), "f32*")


def test_tabs_and_wide_characters_keep_real_columns(tmp_path: Path) -> None:
    module = load_module(
        tmp_path,
        "def outer():\n\tdef k(x):\n"
        "\t\tname = '\u00e4\u00f6'; i = metile.arange(0, 32)\n\treturn k\n",
    )
    (op,) = [o for o in walk(tile_ir(module.outer(), "f32*").body) if isinstance(o, tile.Arange)]
    assert (op.loc.line, op.loc.column, op.loc.end_column) == (4, 20, 40)
    assert op.loc.text == "\t\tname = '\u00e4\u00f6'; i = metile.arange(0, 32)"


def promotions(a, b, n, m):
    i = metile.arange(0, 32)
    h = metile.tensor(a, shape=32).load(i)
    f = metile.tensor(b, shape=32).load(i)
    # CHECK: %doubled = tile.binary mul, %h, %{{.*}} : tile<32xf16>
    doubled = h * 2.0
    # CHECK: %mixed = tile.binary add, %h_f32, %f : tile<32xf32>
    mixed = h + f
    # CHECK: %ratio = tile.binary div, %i_f32, %{{.*}} : tile<32xf32>
    ratio = i / 3
    # CHECK: %half = tile.binary mul, %i_f32{{.*}}, %c0_5 : tile<32xf32>
    half = i * 0.5
    # CHECK: %sum = tile.binary add, %i, %mask_i32 : tile<32xi32>
    mask = i < 3
    sum = i + mask
    # CHECK: %both = tile.binary and, %c2_le_i, %i_lt_n : tile<32xbool>
    both = 2 <= i < n
    # CHECK: %square = tile.binary mul, %f, %f : tile<32xf32>
    square = f**2
    # CHECK: %scaled = tile.binary mul, %f, %m : tile<32xf32>
    scaled = f * m
    return


def test_numbers_and_dtypes_meet_as_in_mlx() -> None:
    """SPEC K4; `i < 3` compares in i32."""
    text = tile_text(promotions, "f16*", "f32*", "i32", "f32")
    filecheck(text, promotions)
    assert "value=2.0, dtype=metile.f16" in text


def test_constants_are_held_as_the_dtype_holds_them() -> None:
    """F25: limits and non-finite numbers; f16 and bf16 round by way of f32, as MLX's do."""

    def k(x, y):
        i = metile.arange(0, 32)
        h = metile.tensor(x, shape=32).load(i, fill=float("-inf"))
        b = metile.tensor(y, shape=32).load(i, fill=-0.0)
        a = (h * 0.1, b * 0.1, h * 1e6, i * 1e-45, b * float("nan"), h * 3)

    constants = {
        (repr(op.value), op.dtype.name)
        for op in walk(tile_ir(k, "f16*", "bf16*").body)
        if isinstance(op, tile.Constant)
    }
    assert {
        ("-inf", "f16"),
        ("-0.0", "bf16"),
        ("0.0999755859375", "f16"),
        ("0.10009765625", "bf16"),
        ("inf", "f16"),
        ("1.401298464324817e-45", "f32"),
        ("nan", "bf16"),
        ("3.0", "f16"),
    } <= constants


def test_store_rounds_floats_once_and_takes_python_numbers() -> None:
    """SPEC K2: a store of floats converts to the tensor's dtype; integers never convert."""

    def k(x, y, z):
        i = metile.arange(0, 32)
        halves = metile.tensor(x, shape=32, access="write")
        words = metile.tensor(z, shape=32, access="write")
        value = metile.tensor(y, shape=32).load(i)
        halves.store(i, value * 2)
        words.store(i, 7)
        # CHECK: %[[F:.*]] = tile.cast %value_times_2, dtype=metile.f16
        # CHECK-NEXT: tile.store %halves, [%i], %[[F]]
        # CHECK: tile.store %words, [%i], %c7

    filecheck(tile_text(k, "f16*", "f32*", "u8*"), k)


def static(x, N: metile.constexpr, WIDE: metile.constexpr = False):
    if WIDE and undefined_name_that_is_not_reached:  # noqa: F821
        size = 0
    else:
        size = metile.next_power_of_2(N)
    view = metile.tensor(x, shape=(size,), access="read_write")
    i = metile.arange(0, size)
    total = view.load(i)
    for step in range(3):
        if step == 1:
            continue
        total += step * ROWS[1]
    for a, b in ((1, 2), (3, 4)):
        if a == 3:
            break
        total = total * (a + b) if not WIDE else total
    count = metile.cdiv(N, 8) + len(ROWS) + min(N, 4) + int(math.sqrt(16)) + (N if N > 3 else 0)
    assert count > 0, f"N={N}"
    view.store(i, total + count)


def test_constants_fold_and_loops_unroll() -> None:
    """SPEC K5: only the taken branch is translated; break and continue are static."""
    func = tile_ir(static, "i32*", N=20)
    kinds = [op.kind.value for op in walk(func.body) if isinstance(op, tile.Binary)]
    assert kinds == ["add", "add", "mul", "add"]
    assert [op.size for op in walk(func.body) if isinstance(op, tile.Arange)] == [32]
    assert "value=33, dtype=metile.i32" in print_func(func)


def branchy(x, n, flag):
    view = metile.tensor(x, shape=(n,), access="write")
    i = metile.arange(0, 32)
    total = metile.zeros(32, metile.f32)
    same = 4
    if flag and n > 8:
        total = total + 1.0
        same = 4
        shift = 1
    elif n == 3:
        total = 2.0
        shift = n
    else:
        shift = 5
    # CHECK: %flag_and_n_gt_8 = tile.binary and, %flag, %n_gt_8 : bool
    # CHECK: %total{{.*}}, %shift = tile.if
    # CHECK: tile.yield [%{{.*}}, %c1{{.*}}]
    # CHECK: %{{.*}}, %shift{{.*}} = tile.if
    # CHECK: tile.yield [%{{.*}}, %n]
    # CHECK: tile.yield [%total, %c5{{.*}}]
    view.store(i + shift + same, total)


def test_runtime_if_merges_the_names_its_sides_assign() -> None:
    """SPEC K5: a scalar broadcasts to the other side's tile; equal constants stay constants."""
    func = tile_ir(branchy, "f32*", "i32", "bool")
    filecheck(print_func(func), branchy)
    (outer,) = [op for op in func.body.ops if isinstance(op, tile.If)]
    assert [str(value.type) for value in outer.results] == ["tile<32xf32>", "i32"]
    assert [value.name for value in outer.results] == ["total", "shift"]


def nested(x, n):
    value = 1
    for step in range(2):
        if n > step:
            value = value * 2.5
            if n == 7:
                value = n
                only_here = 1
    i = metile.arange(0, 32)
    metile.tensor(x, 32, access="write").store(i, metile.cast(i, metile.f32) + value)


def test_numbers_of_both_sides_meet_in_one_dtype() -> None:
    """SPEC K4, K5: int and float give f32; a name of one side is no error until it is used."""
    func = tile_ir(nested, "f32*", "i32")
    outer = [op for op in func.body.ops if isinstance(op, tile.If)]
    assert [str(value.type) for op in outer for value in op.results] == ["f32", "f32"]
    assert len([op for op in walk(func.body) if isinstance(op, tile.If)]) == 4


def selected(x, n):
    i = metile.arange(0, 32)
    view = metile.tensor(x, shape=32, access="write")
    # CHECK: %pick = tile.select condition=%n_gt_3, on_true=%i, on_false=%c0 : tile<32xi32>
    pick = i if n > 3 else 0
    # CHECK: %chosen = tile.select condition=%not_n_ne_0
    chosen = 1.5 if not n else 2
    view.store(i, metile.where(i < n, chosen, pick))


def test_conditional_expression_on_a_scalar_selects() -> None:
    filecheck(tile_text(selected, "f32*", "i32"), selected)


@metile.inline
def halves(values, scale: metile.constexpr = 2):
    """Two results."""
    if scale == 2:
        return values * 0.5, values - 0.5
    return values, values


@metile.inline
def halved_sum(view, index):
    low, high = halves(view.load(index))
    return low + high


def uses_inline(x):
    view = metile.tensor(x, shape=32, access="read_write")
    i = metile.arange(0, 32)
    view.store(i, halved_sum(view, index=i))


def test_inline_functions_take_tensors_and_return_tuples() -> None:
    kinds = [o.kind.value for o in walk(tile_ir(uses_inline, "f32*").body) if hasattr(o, "kind")]
    assert kinds == ["mul", "sub", "add"]


def strided(x, n, m):
    # CHECK: %n_times_4 = tile.binary mul, %n, %c4 : i32
    # CHECK: %m_times_n_times_4 = tile.binary mul, %m, %n_times_4 : i32
    # CHECK: tile.tensor {{.*}}strides=[%m_times_n_times_4, %n_times_4, %c4, %c1]
    a = metile.tensor(x, shape=(2, m, n, 4))
    # CHECK: tile.tensor {{.*}}strides=[%c1, %n]
    b = metile.tensor(x, (n, 4), strides=(1, n))


def test_default_strides_are_row_major_products() -> None:
    """SPEC K2: with runtime inner extents the products are uniform arithmetic on parameters."""
    filecheck(tile_text(strided, "f32*", "i32", "i32"), strided)


def everything(x, n, eps):
    i = metile.arange(n, 64)
    v = metile.tensor(x, shape=64).load(i % 64, mask=i < n, fill=1)
    for fn in (metile.exp, metile.exp2, metile.log, metile.log2, metile.sqrt, metile.rsqrt):
        v = fn(v)
    for fn in (metile.sin, metile.cos, metile.tanh, metile.sigmoid, metile.erf, metile.floor):
        v = fn(v)
    v = metile.ceil(abs(-v)) + metile.abs(v) + metile.fma(v, eps, 1)
    v = metile.minimum(metile.maximum(v, 0), eps)
    k = (i - (i * 3 // 2) << 2 >> 1 ^ 5 | 3 & ~i) + metile.cdiv(n, 8) + metile.num_programs(2)
    w = metile.reshape(metile.where(k > 0, v, 0), (8, 8))
    u = metile.cast(metile.full((8, 8), n, metile.u32), metile.f32) + w
    assert w.shape == (8, 8)
    assert u.dtype == metile.f32
    assert x.dtype is metile.f32
    assert LAYOUT.size == 64
    assert metile.ThreadLayout.identity(64).thread_count == 64


def test_whole_language_of_k3_translates() -> None:
    func = tile_ir(everything, "f32*", "i32", "f32")
    unary = {op.kind for op in walk(func.body) if isinstance(op, tile.Unary)}
    assert unary == set(UnaryKind)
    binary = {op.kind for op in walk(func.body) if isinstance(op, tile.Binary)}
    assert binary == set(BinaryKind) - {BinaryKind.DIV, BinaryKind.REM, BinaryKind.POW}


def test_types_follow_shapes_and_layouts() -> None:
    def k(x):
        i = metile.arange(0, 64, layout=LAYOUT)
        r = metile.reshape(i * 2, (8, 8))

    results = [v for op in walk(tile_ir(k, "f32*").body) for v in op.results]
    assert results[-1].type == TileType(metile.i32, (8, 8), LAYOUT)


def test_mlx_dtypes_are_taken_as_dtypes() -> None:
    class Dtype:
        def __repr__(self) -> str:
            return "mlx.core.float32"

    def k(x, T: metile.constexpr):
        z = metile.cast(metile.arange(0, 32), T)

    cast = tile_ir(k, "f32*", T=Dtype()).body.ops[-1]
    assert isinstance(cast, tile.Cast)
    assert cast.dtype is f32


def test_stubs_refuse_to_run_outside_a_kernel() -> None:
    with pytest.raises(CompileError, match=r"metile\.arange was called outside a kernel"):
        metile.arange(0, 32)
    with pytest.raises(CompileError, match="was called outside a kernel"):
        halves(1)
    assert metile.cdiv(9, 8) == 2
    assert metile.next_power_of_2(33) == 64


def row_sums(x, y, N: metile.constexpr):
    rows = metile.num_programs(0)
    # CHECK: %rows = tile.num_programs axis=0 : i32
    source = metile.tensor(x, shape=(rows, N))
    # CHECK: %source = tile.tensor param=%x, shape=[%rows, %c128], strides=[%c128, %c1]
    target = metile.tensor(y, shape=rows, access="write")
    # CHECK: %target = tile.tensor param=%y, shape=[%rows], strides=[%c1]
    value = source.load((metile.program_id(0), metile.arange(0, N)))
    target.store(metile.program_id(0), metile.sum(value, axis=0, acc=metile.f32))
    # CHECK: %value_sum = tile.reduce sum, %value : f32
    # CHECK: tile.store %target, [%program_0{{.*}}], %value_sum


def test_sums_and_extents_of_the_grid() -> None:
    """SPEC K2, K3, R2: a sum is a uniform scalar; the grid's extent may be a tensor's."""
    filecheck(tile_text(row_sums, "f32*", "f32*", N=128), row_sums)
