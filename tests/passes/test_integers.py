"""// and % are Python's on all integers, and cost what ranges leave undecided (SPEC K3)."""

from __future__ import annotations

import numpy as np
import pytest

from metile_mlx.compiler import lower
from metile_mlx.dtypes import DType, bf16, f16, f32, i32, u32
from metile_mlx.ir import metal
from metile_mlx.ir.arith import BinaryKind
from metile_mlx.ir.core import Func, Value, walk
from tests.support.arithmetic import NUMPY, Array
from tests.support.execute import context, execute
from tests.support.tile_program import TileProgram

MIN, MAX = -(2**31), 2**31 - 1
EXTREME = (0, 1, -1, 2, -2, 3, -3, 7, 8, -8, 64, 1000, -1000, 2**30, MAX, MAX - 1, MIN, MIN + 1)
DIVISORS = (0, 1, -1, 2, -2, 3, -3, 5, 7, -7, 8, -8, 64, 1024, -1024, 2**30, MAX, MIN, MIN + 1)
FLOORING = (BinaryKind.FLOORDIV, BinaryKind.MOD)
SIZE = 1024


def python(kind: BinaryKind, a: int, b: int, dtype: DType) -> int:
    """Python's answer, 0 for the divisor 0, wrapped to the dtype."""
    exact = 0 if b == 0 else a // b if kind is BinaryKind.FLOORDIV else a % b
    return (exact - dtype.min) % 2**32 + dtype.min


def numbers(dtype: DType, seed: int) -> tuple[Array, Array]:
    """All pairs of extreme numbers, then random ones of every magnitude."""
    rng = np.random.default_rng(seed)
    pairs = [(a, b) for a in EXTREME for b in DIVISORS]
    while len(pairs) < SIZE:
        a, b = (int(rng.integers(MIN, MAX + 1)) >> int(rng.integers(0, 31)) for _ in range(2))
        pairs.append((a, b))
    array = np.array(pairs[:SIZE], np.int64).astype(NUMPY[dtype])
    return array[:, 0].copy(), array[:, 1].copy()


def division(kind: BinaryKind, dtype: DType, divisor: int | str) -> Func:
    """z[i] = x[i] `kind` the divisor: a constant, a scalar parameter, or y[i]."""
    p = TileProgram()
    x, z = p.tensor("x", (SIZE,), "read", dtype=dtype), p.tensor("z", (SIZE,), "write", dtype=dtype)
    i = p.lanes(SIZE)
    if divisor == "scalar":
        by = p.scalar("d", dtype)
    elif divisor == "array":
        by = p.load(p.tensor("y", (SIZE,), "read", dtype=dtype), i)
    else:
        by = p.number(divisor, dtype)
    p.store(z, i, value=p.op(kind, p.load(x, i), by))
    return p.func()


def expected(kind: BinaryKind, x: Array, y: Array, dtype: DType) -> list[int]:
    return [python(kind, int(a), int(b), dtype) for a, b in zip(x, y, strict=True)]


@pytest.mark.parametrize("dtype", [i32, u32])
@pytest.mark.parametrize("kind", FLOORING)
def test_division_of_arrays_is_pythons(kind: BinaryKind, dtype: DType) -> None:
    """0, -1, INT_MIN and all magnitudes; the simulator rejects a division by 0 or -1."""
    x, y = numbers(dtype, 1)
    found, _ = execute(division(kind, dtype, "array"), {"x": x, "y": y, "z": x})
    assert found["z"].tolist() == expected(kind, x, y, dtype)


@pytest.mark.parametrize("dtype", [i32, u32])
@pytest.mark.parametrize("kind", FLOORING)
def test_division_by_a_constant_is_pythons(kind: BinaryKind, dtype: DType) -> None:
    """Both signs, powers of two and others, and the constants 0, -1 and INT_MIN."""
    x, _ = numbers(dtype, 2)
    for number in {divisor % 2**32 for divisor in DIVISORS} if dtype is u32 else DIVISORS:
        found, _ = execute(division(kind, dtype, number), {"x": x, "z": x})
        assert found["z"].tolist() == expected(kind, x, np.full(SIZE, number), dtype), number


@pytest.mark.parametrize("kind", FLOORING)
def test_division_by_a_scalar_is_pythons(kind: BinaryKind) -> None:
    """A new value of the scalar needs no other program."""
    x, _ = numbers(i32, 3)
    func = lower(division(kind, i32, "scalar"), context())
    for number in DIVISORS:
        found, _ = execute(division(kind, i32, "scalar"), {"x": x, "z": x}, {"d": number})
        assert found["z"].tolist() == expected(kind, x, np.full(SIZE, number), i32), number
    assert func.params[1].name == "d"


def thread_division(kind: BinaryKind, number: int, start: int = 0) -> Func:
    p = TileProgram()
    z = p.tensor("z", (64,), "write", dtype=i32)
    i = p.lanes(64)
    p.store(z, i, value=p.op(kind, p.op(BinaryKind.ADD, i, start), number))
    return p.func()


@pytest.mark.parametrize("number", [1, 2, 3, 7, 8, -1, -3, -8, 0, 64, 100])
@pytest.mark.parametrize("start", [0, -32, 2**31 - 64])
@pytest.mark.parametrize("kind", FLOORING)
def test_division_of_a_known_range_is_pythons(kind: BinaryKind, start: int, number: int) -> None:
    """Where correction code is left out, its absence has to be right."""
    found, _ = execute(thread_division(kind, number, start), {"z": np.zeros(64, np.int32)})
    assert found["z"].tolist() == [python(kind, start + t, number, i32) for t in range(64)]


def kinds(func: Func) -> list[str]:
    """What is left after dead code, but for addresses."""
    return [
        item.kind.value
        for item in walk(lower(func, context()).body)
        if isinstance(item, metal.Binary | metal.Compare)
    ] + ["select" for item in walk(lower(func, context()).body) if isinstance(item, metal.Select)]


@pytest.mark.parametrize(
    ("kind", "number", "left"),
    [
        (BinaryKind.FLOORDIV, 8, ["shr"]),
        (BinaryKind.MOD, 8, ["and"]),
        (BinaryKind.FLOORDIV, 7, ["div"]),
        (BinaryKind.MOD, 7, ["rem"]),
        (BinaryKind.FLOORDIV, 64, []),
        (BinaryKind.MOD, 64, []),
    ],
)
def test_no_correction_for_operands_known_not_to_be_negative(
    kind: BinaryKind, number: int, left: list[str]
) -> None:
    assert kinds(thread_division(kind, number)) == left


def test_negative_numbers_by_powers_of_two_need_no_correction_either() -> None:
    for kind, one in ((BinaryKind.FLOORDIV, "shr"), (BinaryKind.MOD, "and")):
        assert kinds(division(kind, i32, 16)) == [one]


def test_unsigned_division_guards_only_the_zero() -> None:
    assert kinds(division(BinaryKind.MOD, u32, "scalar")) == ["eq", "rem", "select"]


def test_the_divisor_of_a_constant_needs_no_guard() -> None:
    assert "eq" not in kinds(division(BinaryKind.FLOORDIV, i32, -3))
    assert kinds(division(BinaryKind.FLOORDIV, i32, "scalar")).count("eq") == 2


def floats(dtype: DType) -> tuple[Array, Array]:
    special = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, 0.1, np.inf, -np.inf, np.nan, 65504.0, 1e-7]
    pairs = np.array([(a, b) for a in special for b in special], np.float32)
    filler = np.random.default_rng(4).standard_normal((SIZE - len(pairs), 2)).astype(np.float32)
    both = np.concatenate([pairs, filler])
    return both[:, 0].astype(NUMPY[dtype]), both[:, 1].astype(NUMPY[dtype])


@pytest.mark.parametrize("dtype", [f32, f16])
def test_float_floor_division_and_modulo_follow_mlx(dtype: DType) -> None:
    """floor of the rounded quotient; the remainder of fmod with the sign of the divisor."""
    x, y = floats(dtype)
    with np.errstate(all="ignore"):
        quotient = np.floor((x.astype(np.float32) / y.astype(np.float32)).astype(x.dtype))
        rest = np.fmod(x.astype(np.float32), y.astype(np.float32)).astype(x.dtype)
        wrong = (rest != 0) & ((rest < 0) != (y < 0))
        remainder = np.where(wrong, (rest + y).astype(x.dtype), rest)
    for kind, values in ((BinaryKind.FLOORDIV, quotient), (BinaryKind.MOD, remainder)):
        found, _ = execute(division(kind, dtype, "array"), {"x": x, "y": y, "z": x})
        np.testing.assert_array_equal(found["z"], values)


def test_bf16_division_rounds_before_it_floors() -> None:
    """SPEC K4: every bf16 operation rounds; 250 / 1.0078125 rounds up to 248 in bf16."""
    x = np.full(SIZE, 0x437A, np.uint16)  # 250
    y = np.full(SIZE, 0x3F81, np.uint16)  # 1.0078125
    found, _ = execute(division(BinaryKind.FLOORDIV, bf16, "array"), {"x": x, "y": y, "z": x})
    assert found["z"].tolist() == [0x4378] * SIZE  # 248, the exact quotient is 248.06


def test_shift_counts_are_taken_modulo_the_width() -> None:
    """Counts of 32 and more, and negative ones, on i32 and u32."""
    counts = np.arange(-64, 64, dtype=np.int32)
    for dtype in (i32, u32):
        for kind in (BinaryKind.SHL, BinaryKind.SHR):
            p = TileProgram()
            size = (128,)
            n = p.tensor("n", size, "read", dtype=dtype)
            z = p.tensor("z", size, "write", dtype=dtype)
            i = p.lanes(128)
            value: Value = p.number(-12345 % 2**32 if dtype is u32 else -12345, dtype)
            p.store(z, i, value=p.op(kind, value, p.load(n, i)))
            given = counts.astype(NUMPY[dtype])
            found, _ = execute(p.func(), {"n": given, "z": given})
            base = -12345 % 2**32 if dtype is u32 else -12345
            shifted = [
                base << int(c) % 32 if kind is BinaryKind.SHL else base >> int(c) % 32
                for c in counts
            ]
            wrapped = [(x - dtype.min) % 2**32 + dtype.min for x in shifted]
            assert found["z"].tolist() == wrapped
