"""The meaning of every elementwise op, against Python and NumPy (SPEC X5, K3, K4)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.dtypes import ALL, DType, Kind, bf16, bool_, f16, f32, i32, i64, u8, u16, u32
from metile_mlx.ir import tile
from metile_mlx.ir.arith import FLOAT_UNARY, BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Value
from metile_mlx.runtime.cpu import mlx_dtypes
from metile_mlx.runtime.reference import evaluate
from tests.support.tile_program import TileProgram

TILE = 32
EDGES = (0, 1, -1, 2, -3, 7, 31, 32, 33, 100, 2**31 - 1, -(2**31), -(2**31) + 1)
FLOATS = (f16, bf16, f32)


def elementwise(
    build: Callable[[TileProgram, list[Value]], Value],
    inputs: Sequence[mx.array],
    dtypes: Sequence[DType],
    out: DType,
) -> mx.array:
    """`build` over the elements of 1-D arrays of one length, a ragged last tile included."""
    p = TileProgram()
    size = inputs[0].size
    names = [f"x{k}" for k in range(len(inputs))]
    tensors = [
        p.tensor(name, (size,), "read", dtype=dtype)
        for name, dtype in zip(names, dtypes, strict=True)
    ]
    y = p.tensor("y", (size,), "write", dtype=out)
    at = p.lanes(TILE, p.op(BinaryKind.MUL, p.program_id(), TILE))
    p.store(y, at, value=build(p, [p.load(tensor, at) for tensor in tensors]))
    grid = (-(-size // TILE), 1, 1)
    arrays = dict(zip(names, inputs, strict=True))
    return evaluate(p.func(), arrays, {}, {"y": ((size,), out)}, grid)["y"]


def array(values: Sequence[Any], dtype: DType) -> mx.array:
    if dtype.kind in (Kind.INT, Kind.UINT):
        return mx.array(np.array(values, dtype=f"{dtype.kind.value}{dtype.bits}"))
    return mx.array(values, mlx_dtypes()[dtype])


def wrapped(value: int, dtype: DType) -> int:
    return (value - dtype.min) % (1 << dtype.bits) + dtype.min


INTEGER: dict[BinaryKind, Callable[[int, int], int]] = {
    BinaryKind.ADD: lambda a, b: a + b,
    BinaryKind.SUB: lambda a, b: a - b,
    BinaryKind.MUL: lambda a, b: a * b,
    BinaryKind.FLOORDIV: lambda a, b: a // b if b else 0,
    BinaryKind.MOD: lambda a, b: a % b if b else 0,
    BinaryKind.SHL: lambda a, b: a << (b & 31),
    BinaryKind.SHR: lambda a, b: a >> (b & 31),
    BinaryKind.AND: lambda a, b: a & b,
    BinaryKind.OR: lambda a, b: a | b,
    BinaryKind.XOR: lambda a, b: a ^ b,
    BinaryKind.MINIMUM: min,
    BinaryKind.MAXIMUM: max,
}


@pytest.mark.parametrize("dtype", [i32, u32], ids=str)
@pytest.mark.parametrize("kind", INTEGER, ids=lambda kind: kind.value)
def test_integers_wrap_and_divide_as_python_does(kind: BinaryKind, dtype: DType) -> None:
    """Floor division, x // 0 == x % 0 == 0, INT_MIN // -1 wraps, shift counts modulo the width."""
    pairs = [(wrapped(a, dtype), wrapped(b, dtype)) for a, b in itertools.product(EDGES, EDGES)]
    lhs, rhs = [a for a, _ in pairs], [b for _, b in pairs]
    expected = [wrapped(INTEGER[kind](a, b), dtype) for a, b in pairs]
    made = elementwise(
        lambda p, v: p.add(tile.Binary(kind, v[0], v[1])),
        [array(lhs, dtype), array(rhs, dtype)],
        [dtype, dtype],
        dtype,
    )
    assert made.tolist() == expected


@pytest.mark.parametrize("kind", [BinaryKind.FLOORDIV, BinaryKind.MOD])
@pytest.mark.parametrize("divisor", EDGES)
def test_division_by_a_number(kind: BinaryKind, divisor: int) -> None:
    made = elementwise(lambda p, v: p.op(kind, v[0], divisor), [array(EDGES, i32)], [i32], i32)
    assert made.tolist() == [wrapped(INTEGER[kind](a, divisor), i32) for a in EDGES]


def test_masks_combine_and_negate() -> None:
    a, b = [True, True, False, False], [True, False, True, False]
    for kind, expected in (
        (BinaryKind.AND, [True, False, False, False]),
        (BinaryKind.OR, [True, True, True, False]),
        (BinaryKind.XOR, [False, True, True, False]),
    ):
        both = elementwise(
            lambda p, v, kind=kind: p.add(tile.Binary(kind, v[0], v[1])),
            [mx.array(a), mx.array(b)],
            [bool_, bool_],
            bool_,
        )
        assert both.tolist() == expected
    inverse = elementwise(lambda p, v: p.unary(UnaryKind.NOT, v[0]), [mx.array(a)], [bool_], bool_)
    assert inverse.tolist() == [False, False, True, True]


REALS = (0.0, -0.0, 1.0, -1.5, 2.0, -2.0, 7.5, -7.5, 300.0, 1e-3, math.inf, -math.inf, math.nan)
# The arithmetic in f32; MLX rounds each result to the dtype.
REAL: dict[BinaryKind, Callable[[Any, Any], Any]] = {
    BinaryKind.ADD: lambda a, b: a + b,
    BinaryKind.SUB: lambda a, b: a - b,
    BinaryKind.MUL: lambda a, b: a * b,
    BinaryKind.DIV: lambda a, b: a / b,
    BinaryKind.MOD: np.remainder,
    BinaryKind.POW: np.power,
    BinaryKind.MINIMUM: np.minimum,
    BinaryKind.MAXIMUM: np.maximum,
}


def as_numpy(values: mx.array) -> Any:
    return np.array(values.astype(mx.float32))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", [*REAL, BinaryKind.FLOORDIV], ids=lambda kind: kind.value)
def test_floats_round_every_result_to_their_dtype(kind: BinaryKind, dtype: DType) -> None:
    pairs = list(itertools.product(REALS, REALS))
    lhs = array([a for a, _ in pairs], dtype)
    rhs = array([b for _, b in pairs], dtype)
    made = elementwise(
        lambda p, v: p.add(tile.Binary(kind, v[0], v[1])), [lhs, rhs], [dtype, dtype], dtype
    )
    assert made.dtype == mlx_dtypes()[dtype]

    def rounded(values: Any) -> Any:
        return as_numpy(mx.array(values.astype(np.float32)).astype(mlx_dtypes()[dtype]))

    with np.errstate(all="ignore"):
        a, b = as_numpy(lhs), as_numpy(rhs)
        if kind is BinaryKind.FLOORDIV:
            expected = np.floor(rounded(a / b))
        else:
            expected = rounded(REAL[kind](a, b))
        if kind is BinaryKind.MOD:
            # fmod(x, inf) is x; NumPy then adds the divisor where the signs differ, as MLX does.
            expected = np.where(np.isinf(b) & (a * b < 0), rounded(np.fmod(a, b) + b), expected)
    np.testing.assert_allclose(
        as_numpy(made), expected, rtol=2e-7 if kind is BinaryKind.POW else 0, atol=0
    )


def test_f16_and_bf16_round_between_operations() -> None:
    """(1 + eps / 4) - 1 is 0 in each dtype; without rounding in between it would be eps / 4."""
    for dtype, small in ((f16, 2.0**-12), (bf16, 2.0**-9)):
        made = elementwise(
            lambda p, v: p.add(
                tile.Binary(BinaryKind.SUB, p.add(tile.Binary(BinaryKind.ADD, v[0], v[1])), v[0])
            ),
            [array([1.0], dtype), array([small], dtype)],
            [dtype, dtype],
            dtype,
        )
        assert made.item() == 0.0


def test_minimum_and_maximum_hand_on_a_nan_from_either_side() -> None:
    a, b = array([math.nan, 1.0, math.nan], f32), array([1.0, math.nan, math.nan], f32)
    for kind in (BinaryKind.MINIMUM, BinaryKind.MAXIMUM):
        made = elementwise(
            lambda p, v, kind=kind: p.add(tile.Binary(kind, v[0], v[1])), [a, b], [f32, f32], f32
        )
        assert np.isnan(as_numpy(made)).all()


MATH: dict[UnaryKind, Callable[[float], float]] = {
    UnaryKind.EXP: math.exp,
    UnaryKind.EXP2: lambda x: 2.0**x,
    UnaryKind.LOG: math.log,
    UnaryKind.LOG2: math.log2,
    UnaryKind.SQRT: math.sqrt,
    UnaryKind.RSQRT: lambda x: 1 / math.sqrt(x),
    UnaryKind.SIN: math.sin,
    UnaryKind.COS: math.cos,
    UnaryKind.TANH: math.tanh,
    UnaryKind.SIGMOID: lambda x: 1 / (1 + math.exp(-x)),
    UnaryKind.ERF: math.erf,
    UnaryKind.FLOOR: math.floor,
    UnaryKind.CEIL: math.ceil,
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("kind", sorted(FLOAT_UNARY, key=lambda kind: kind.value))
def test_elementary_functions(kind: UnaryKind, dtype: DType) -> None:
    x = array([0.125, 0.5, 1.0, 1.75, 2.5, 6.0], dtype)
    made = elementwise(lambda p, v: p.unary(kind, v[0]), [x], [dtype], dtype)
    expected = [MATH[kind](v) for v in as_numpy(x).tolist()]
    assert made.dtype == x.dtype
    tolerance = {f16: 1e-3, bf16: 8e-3, f32: 2e-6}[dtype]
    np.testing.assert_allclose(as_numpy(made), expected, rtol=tolerance, atol=tolerance / 4)


def test_negation_not_and_magnitude() -> None:
    unsigned = [wrapped(v, u32) for v in EDGES]
    for kind, rule in (
        (UnaryKind.NEG, lambda v: -v),
        (UnaryKind.NOT, lambda v: ~v),
        (UnaryKind.ABS, abs),
    ):
        for dtype, values in ((i32, EDGES), (u32, unsigned)):
            made = elementwise(
                lambda p, v, kind=kind: p.unary(kind, v[0]), [array(values, dtype)], [dtype], dtype
            )
            assert made.tolist() == [wrapped(rule(v), dtype) for v in values]
    x = array([0.0, -0.0, 2.0, -math.inf], f32)
    for kind, expected in ((UnaryKind.NEG, -as_numpy(x)), (UnaryKind.ABS, abs(as_numpy(x)))):
        made = elementwise(lambda p, v, kind=kind: p.unary(kind, v[0]), [x], [f32], f32)
        assert as_numpy(made).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", CompareKind, ids=lambda kind: kind.value)
def test_comparisons_follow_ieee(kind: CompareKind) -> None:
    rule = getattr(
        np,
        {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal"}.get(
            kind.value, {"gt": "greater", "ge": "greater_equal"}.get(kind.value, "")
        ),
    )
    pairs = list(itertools.product(REALS, REALS))
    a, b = array([a for a, _ in pairs], f32), array([b for _, b in pairs], f32)
    made = elementwise(
        lambda p, v: p.add(tile.Compare(kind, v[0], v[1])), [a, b], [f32, f32], bool_
    )
    assert made.tolist() == rule(as_numpy(a), as_numpy(b)).tolist()
    u, v = array([0, 2**32 - 1], u32), array([2**32 - 1, 0], u32)
    made = elementwise(
        lambda p, v: p.add(tile.Compare(kind, v[0], v[1])), [u, v], [u32, u32], bool_
    )
    assert made.tolist() == rule(np.array(u), np.array(v)).tolist()


def test_select_takes_uniform_operands() -> None:
    def build(p: TileProgram, v: list[Value]) -> Value:
        positive = p.compare(CompareKind.GT, v[0], p.number(0.0, f32))
        return p.add(tile.Select(positive, v[0], p.number(-5.0, f32)))

    made = elementwise(build, [array([1.0, -1.0, 0.0, 2.0], f32)], [f32], f32)
    assert made.tolist() == [1.0, -5.0, -5.0, 2.0]


@pytest.mark.parametrize("target", ALL, ids=str)
@pytest.mark.parametrize("source", ALL, ids=str)
def test_casts_keep_values_both_dtypes_hold(source: DType, target: DType) -> None:
    if bool_ in (source, target):
        values: list[Any] = [0, 1, 1]
    elif source.is_signed and target.is_signed:
        values = [0, 1, -1, 100, -128]
    else:
        values = [0, 1, 100, 127]
    made = elementwise(
        lambda p, v: p.add(tile.Cast(v[0], target)), [array(values, source)], [source], target
    )
    assert made.dtype == mlx_dtypes()[target]
    assert made.astype(mx.float32).tolist() == values


def test_casts_truncate_round_to_even_wrap_and_test_for_zero() -> None:
    def cast(values: list[Any], source: DType, target: DType) -> Any:
        return elementwise(
            lambda p, v: p.add(tile.Cast(v[0], target)), [array(values, source)], [source], target
        ).tolist()

    assert cast([1.9, -1.9, -0.5, 2.0**30], f32, i32) == [1, -1, 0, 2**30]
    assert cast([1.9, 2.0**31], f32, u32) == [1, 2**31]
    assert cast([1.99, -7.75], f16, i32) == [1, -7]
    # 1 + eps / 2 is half way between 1 and 1 + eps: to even.
    assert cast([1 + 2**-11, 1 + 3 * 2**-11], f32, f16) == [1.0, 1 + 2**-9]
    assert cast([1 + 2**-8, 1 + 3 * 2**-8], f32, bf16) == [1.0, 1 + 2**-6]
    assert cast([0.0, -0.0, 0.25, math.nan], f32, bool_) == [False, False, True, True]
    assert cast([0, 256, -1], i32, bool_) == [False, True, True]
    assert cast([256 + 7, -1], i32, u8) == [7, 255]
    assert cast([-1], i32, u32) == [2**32 - 1]
    assert cast([2**40 + 5], i64, i32) == [5]
    assert cast([2**24 + 1], i32, f32) == [2.0**24]


def test_bitcasts_reinterpret() -> None:
    made = elementwise(
        lambda p, v: p.add(tile.Bitcast(v[0], u32)), [array([1.0, -0.0], f32)], [f32], u32
    )
    assert made.tolist() == [0x3F800000, 0x80000000]
    made = elementwise(
        lambda p, v: p.add(tile.Bitcast(v[0], bf16)), [array([0x3F80, 0xC000], u16)], [u16], bf16
    )
    assert as_numpy(made).tolist() == [1.0, -2.0]


def test_fma_rounds_once() -> None:
    """Against exact rationals, with sums half way between two f32 and a little beside that."""
    rng = np.random.default_rng(5)
    a = rng.integers(2**23, 2**24, 4000).astype(np.float32)
    b = rng.integers(2**23, 2**24, 4000).astype(np.float32)
    c = (rng.choice([-1, 1], 4000) * 2.0 ** rng.integers(-60, 60, 4000)).astype(np.float32)
    # 2**24 + 1 is half way; 2**-60 beside it decides, and f64 drops that.
    a[:4], b[:4] = 2.0**12 + 1, 2.0**12 + 1
    halfway = [(2.0**24, 1.0, 1.0)] * 2
    more = [(2.0**24 + 2, 1.0, -1.0), (2.0**24 + 2, 1.0, 1.0)]
    tiny = [(1 + 2.0**-23, 2.0**-60 * (1 - 2.0**-23), 2.0**-36 + 2.0**-59)]
    cases = [*zip(a.tolist(), b.tolist(), c.tolist(), strict=True), *halfway, *more, *tiny]
    inputs = [array([case[k] for case in cases], f32) for k in range(3)]
    made = elementwise(lambda p, v: p.add(tile.Fma(*v)), inputs, [f32] * 3, f32)
    got = made.tolist()
    for (x, y, z), value in zip(cases, got, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(float(np.float32(z)))
        here = np.float32(value)
        others = [np.nextafter(here, np.float32(side * math.inf)) for side in (1, -1)]
        distance = abs(Fraction(float(here)) - exact)
        assert all(distance <= abs(Fraction(float(other)) - exact) for other in others)


def test_fma_breaks_ties_that_f64_cannot_see() -> None:
    """The product is half a unit in the last place of c, but for 2**-70, which f64 drops."""
    odd = 1 + 2.0**-23
    below = (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23))
    # 8392705 * 8384513 == 2**46 + 1.
    above = (2.0**-35 * 8392705, 2.0**-35 * 8384513)
    cases = [(*below, odd), (*above, 1.0), (-below[0], below[1], -odd), (-above[0], above[1], -1.0)]
    inputs = [array([case[k] for case in cases], f32) for k in range(3)]
    made = elementwise(lambda p, v: p.add(tile.Fma(*v)), inputs, [f32] * 3, f32)
    assert made.tolist() == [odd, odd, -odd, -odd]


def test_fma_in_f16_is_the_f32_one_rounded_again() -> None:
    x = [array([v], f16) for v in (1 + 2.0**-10, 1 + 2.0**-10, -1.0)]
    made = elementwise(lambda p, v: p.add(tile.Fma(*v)), x, [f16] * 3, f16)
    assert made.tolist() == [float(np.float16(2.0**-9 + 2.0**-20))]
    infinite = [array([v], f32) for v in (math.inf, 1.0, -math.inf)]
    made = elementwise(lambda p, v: p.add(tile.Fma(*v)), infinite, [f32] * 3, f32)
    assert math.isnan(made.item())


def test_programs_run_along_x_first_and_know_the_grid() -> None:
    """F15: every program runs once, under its own number."""
    grid = (3, 4, 2)
    p = TileProgram()
    y = p.tensor("y", (2, 4, 3, 4), "write", dtype=i32)
    x, row, plane = (p.program_id(axis) for axis in range(3))
    number = p.op(BinaryKind.ADD, x, p.op(BinaryKind.MUL, p.add(tile.NumPrograms(0)), row))
    below = p.op(BinaryKind.MUL, p.add(tile.NumPrograms(0)), p.add(tile.NumPrograms(1)))
    number = p.op(BinaryKind.ADD, number, p.op(BinaryKind.MUL, below, plane))
    at = p.lanes(4)
    p.store(y, plane, row, x, at, value=p.op(BinaryKind.ADD, p.op(BinaryKind.MUL, number, 4), at))
    made = evaluate(p.func(), {}, {}, {"y": ((2, 4, 3, 4), i32)}, grid)["y"]
    assert made.flatten().tolist() == list(range(96))


def test_arange_splat_and_reshape() -> None:
    p = TileProgram()
    y = p.tensor("y", (64,), "write", dtype=i32)
    at = p.lanes(64)
    start = p.scalar("start")
    square = p.add(tile.Reshape(p.lanes(64, start), (8, 8)))
    scaled = p.add(tile.Binary(BinaryKind.MUL, square, p.add(tile.Splat(start, (8, 8)))))
    p.store(y, at, value=p.add(tile.Reshape(scaled, (64,))))
    made = evaluate(p.func(), {}, {"start": 5}, {"y": ((64,), i32)}, (1, 1, 1))["y"]
    assert made.tolist() == [(5 + k) * 5 for k in range(64)]


def test_every_scalar_kind_is_taken_as_a_number_and_as_an_mlx_array() -> None:
    p = TileProgram()
    y = p.tensor("y", (4,), "write")
    n, x, flag = p.scalar("n"), p.scalar("x", f32), p.scalar("flag", bool_)
    total = p.add(tile.Binary(BinaryKind.ADD, p.add(tile.Cast(n, f32)), x))
    chosen = p.add(tile.Select(flag, total, x))
    p.store(y, p.lanes(4), value=chosen)
    for scalars in (
        {"n": 3, "x": 0.5, "flag": True},
        {"n": mx.array(3), "x": mx.array([0.5]), "flag": mx.array(True)},
        {"n": 3, "x": mx.array(0.5, mx.float16), "flag": True},
    ):
        made = evaluate(p.func(), {}, scalars, {"y": ((4,), f32)}, (1, 1, 1))["y"]
        assert made.tolist() == [3.5] * 4
