"""One kernel per dtype that applies every operation of the metal op set to its operands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from metile_mlx import dtypes
from metile_mlx.dtypes import DType, Kind, bf16, bool_, f16, f32, u64
from metile_mlx.ir.arith import (
    BITWISE,
    FLOAT_UNARY,
    SHIFTS,
    TILE_ONLY,
    BinaryKind,
    CompareKind,
    UnaryKind,
)
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.metal import (
    Binary,
    Bitcast,
    Cast,
    Compare,
    Fma,
    Load,
    ProgramId,
    Select,
    Store,
    ThreadIndex,
    Unary,
)
from tests.emit.kernels import Maker, output_pointer, source_pointer
from tests.support.arithmetic import NUMPY, Array, to_bf16

THREADS = 64
PROGRAMS = 64
SIZE = THREADS * PROGRAMS
ARITHMETIC = tuple(dtype for dtype in dtypes.ALL if dtype.is_arithmetic)


def unary_kinds(dtype: DType) -> list[UnaryKind]:
    """The operations that exist on a dtype."""
    if dtype.is_float:
        return [kind for kind in UnaryKind if kind is not UnaryKind.NOT]
    if dtype == bool_:
        return [UnaryKind.NOT]
    return [kind for kind in UnaryKind if kind not in FLOAT_UNARY]


def binary_kinds(dtype: DType) -> list[BinaryKind]:
    """The operations that exist on a dtype."""
    kinds = [kind for kind in BinaryKind if kind not in TILE_ONLY]
    if dtype == bool_:
        return [kind for kind in kinds if kind in BITWISE]
    if dtype.is_float:
        return [kind for kind in kinds if kind not in BITWISE | SHIFTS]
    return [kind for kind in kinds if kind is not BinaryKind.POW]


class _Kernel:
    """`<name>[i] = build(x[i], y[i])` for any number of names."""

    def __init__(self, name: str, dtype: DType) -> None:
        self.m = Maker()
        self.dtype = dtype
        self._name = name
        self._sources = [source_pointer(dtype, name) for name in ("x", "y", "divisor")]
        self._outputs: list[Value] = []
        base = self.m.op(
            BinaryKind.MUL,
            self.m.cast(self.m.b.add(ProgramId(0), "program"), u64),
            self.m.const(THREADS, u64),
        )
        self._index = self.m.op(
            BinaryKind.ADD, base, self.m.cast(self.m.b.add(ThreadIndex()), u64), "i"
        )
        self.x, self.y, self.divisor = (
            self.m.b.add(Load(pointer, self._index), f"{pointer.name}_value")
            for pointer in self._sources
        )

    def out(self, name: str, value: Value) -> None:
        """Store a value to an output of its own."""
        pointer = output_pointer(value.type.dtype, name)  # type: ignore[union-attr]
        self._outputs.append(pointer)
        self.m.b.emit(Store(pointer, self._index, value))

    def func(self) -> Func:
        params = (*self._sources, *self._outputs)
        return Func(self._name, params, self.m.b.block(), threads=THREADS)


def operations(dtype: DType) -> Func:
    """Every unary, binary, comparison, select and fma on `dtype`, with and without a constant."""
    k = _Kernel(f"operations_{dtype}", dtype)
    add: Callable[..., Value] = k.m.b.add
    for unary in unary_kinds(dtype):
        k.out(f"{unary.value}_of_x", add(Unary(unary, k.x), unary.value))
    constant = k.m.const(3, dtype)
    for binary in binary_kinds(dtype):
        divides = binary in (BinaryKind.DIV, BinaryKind.REM) and dtype.is_integer
        rhs = k.divisor if divides else k.y
        k.out(f"{binary.value}_of_xy", add(Binary(binary, k.x, rhs), binary.value))
        k.out(f"{binary.value}_of_x3", add(Binary(binary, k.x, constant), binary.value))
        if not divides:
            k.out(f"{binary.value}_of_3y", add(Binary(binary, constant, k.y), binary.value))
    for compare in CompareKind:
        mask = add(Compare(compare, k.x, k.y), "mask")
        k.out(f"{compare.value}_of_xy", mask)
        k.out(f"{compare.value}_chosen", add(Select(mask, k.x, constant), "chosen"))
    if dtype.is_float:
        k.out("fma_of_xyx", add(Fma(k.x, k.y, k.x), "fused"))
    return k.func()


def casts(source: DType) -> Func:
    """`source` to every dtype, and its bits as every type of its width."""
    k = _Kernel(f"casts_{source}", source)
    for dtype in dtypes.ALL:
        k.out(f"to_{dtype}", k.m.b.add(Cast(k.x, dtype), "converted"))
        if dtype.bits == source.bits and bool_ not in (dtype, source):
            k.out(f"as_{dtype}", k.m.b.add(Bitcast(k.x, dtype), "reinterpreted"))
    return k.func()


def operands(dtype: DType, seed: int = 0) -> dict[str, Array]:
    """`x`, `y` and a `divisor` that is neither 0 nor -1, of SIZE elements, special values among
    them."""
    rng = np.random.default_rng(seed)
    if dtype.kind is Kind.BOOL:
        made = {name: rng.integers(0, 2, SIZE).astype(bool) for name in ("x", "y", "divisor")}
    elif dtype.is_float:
        made = {name: _floats(dtype, rng) for name in ("x", "y", "divisor")}
    else:
        made = {name: _integers(dtype, rng) for name in ("x", "y", "divisor")}
        made["divisor"][made["divisor"] == 0] = 7
        if dtype.is_signed:
            made["divisor"][made["divisor"] == -1] = 7
    return made


def _integers(dtype: DType, rng: np.random.Generator) -> Array:
    special = np.array([dtype.min, dtype.max, 0, 1, 2, 31, dtype.max - 1], NUMPY[dtype])
    wide = rng.integers(dtype.min, dtype.max, SIZE, dtype=NUMPY[dtype], endpoint=True)
    small = rng.integers(0, min(dtype.max, 100), SIZE).astype(NUMPY[dtype])
    made = np.where(rng.random(SIZE) < 0.5, wide, small)
    made[rng.random(SIZE) < 0.1] = rng.choice(special)
    made[: special.size] = special
    return made


def _floats(dtype: DType, rng: np.random.Generator) -> Array:
    """All sorts of magnitudes, and for 16 bits arbitrary bits."""
    if dtype == f32:
        made = (rng.standard_normal(SIZE) * 10.0 ** rng.integers(-4, 5, SIZE)).astype(np.float32)
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 3.4e38], np.float32)
    elif dtype == f16:
        made = rng.integers(0, 1 << 16, SIZE).astype(np.uint16).view(np.float16)
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, 65504.0, 1.0], np.float16)
    else:
        assert dtype == bf16
        made = rng.integers(0, 1 << 16, SIZE).astype(np.uint16)
        special = to_bf16(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 3e38, 1.0]))
    made[rng.integers(0, SIZE, 64)] = np.resize(special, 64)
    return made
