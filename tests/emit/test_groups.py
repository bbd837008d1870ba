"""Groups of accesses as text: the guard, both address spaces, carriers, and what a CPU makes of
them (SPEC V2, F14, F52)."""

from __future__ import annotations

import functools
import mmap
import re

import numpy as np
import pytest

from metile_mlx.compiler import compile_kernel
from metile_mlx.context import Context, Schedule
from metile_mlx.dtypes import DType, bf16, f16, f32, u32
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir import metal, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Builder, Func, Value
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.target import CPU, CUDA, METAL
from tests.emit.compiled import COMPILERS, Library, build, remarks, text_of
from tests.support.arithmetic import NUMPY, Array
from tests.support.grouped import adjacent, row_func, striped
from tests.support.tile_program import TileProgram

DTYPES = (f16, bf16, f32)
VECTORS = {f16: ("half4", "half"), bf16: ("ushort4", "bfloat"), f32: ("float4", "float")}
SCALAR = Schedule(vector_width=1)


def msl(func: Func, **options: object) -> KernelSource:
    return compile_kernel(func, Context(METAL, **options))  # type: ignore[arg-type]


def cpp(func: Func, **options: object) -> KernelSource:
    return compile_kernel(func, Context(CPU, **options))  # type: ignore[arg-type]


def copy(dtype: DType, kind: BinaryKind | None = None) -> Func:
    """y = x, or x `kind` x, or where(x > 2, x, -x), over a tile of 32 by 16 (F14)."""
    p = TileProgram("copy")
    x = p.tensor("x", (32, 16), "read", dtype=dtype)
    y = p.tensor("y", (32, 16), "write", dtype=dtype)
    i = p.lanes(512, 0, adjacent(512))
    at = (p.op(BinaryKind.FLOORDIV, i, 16), p.op(BinaryKind.MOD, i, 16))
    value = p.load(x, *at)
    if kind is BinaryKind.MINIMUM:
        large = p.add(tile.Compare(CompareKind.GT, value, p.number(2.0, dtype)))
        value = p.add(tile.Select(large, value, p.unary(UnaryKind.NEG, value)))
    elif kind is not None:
        value = p.add(tile.Binary(kind, value, value))
    p.store(y, *at, value=value)
    return p.func()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_v2_text_of_a_guarded_group(dtype: DType) -> None:
    vector, _ = VECTORS[dtype]
    body = msl(row_func(adjacent(256), dtype)).body
    guard = (
        "if (in_bounds && in_bounds_2 && in_bounds_3 && in_bounds_4 && "
        "metile_consecutive(offset, offset_2, offset_3, offset_4)) {"
    )
    assert body.count(guard) == 2
    assert f"{vector} vector;" in body
    assert "metile_load4(&x[offset])" in body
    assert "metile_store4(&y[offset], " in body
    for lane in ("", "_2", "_3", "_4"):
        assert f"in_bounds{lane} ? x[offset{lane}] : " in body
        assert re.search(rf"if \(in_bounds{lane}\) \{{ y\[offset{lane}\] = ", body)


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
def test_v1_text_of_eight_neighbours_on_cuda(dtype: DType) -> None:
    """Two vectors by one helper behind one guard, which compares no indices."""
    vector, _ = VECTORS[dtype]
    source = compile_kernel(row_func(adjacent(256, 8), dtype), Context(CUDA))
    names = ["in_bounds", *(f"in_bounds_{k}" for k in range(2, 9))]
    assert source.body.count(f"if ({' && '.join(names)}) {{") == 2
    assert re.search(r"metile_load8\(&x\[offset\], \w+, \w+\);", source.body)
    assert f"metile_store8(&y[offset], {vector}(" in source.body
    assert "metile_consecutive" not in source.header + source.body


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_v2_helpers_for_both_address_spaces(dtype: DType) -> None:
    """An input of 4 to 7 elements is `constant`; packed types have the alignment of an element."""
    vector, scalar = VECTORS[dtype]
    header = msl(row_func(adjacent(256), dtype)).header
    for space in ("device", "constant"):
        assert f"inline {vector} metile_load4(const {space} {scalar}* at)" in header
        assert f"reinterpret_cast<const {space} packed_{vector}*>(at)" in header
    assert f"inline void metile_store4(device {scalar}* at, {vector} value)" in header
    assert f"reinterpret_cast<device packed_{vector}*>(at) = packed_{vector}(value);" in header
    assert header.isascii()


def test_v2_no_guard_where_everything_is_proven() -> None:
    source = msl(row_func(adjacent(256), extent=256))
    assert "float4 vector = metile_load4(&x[offset]);" in source.body
    assert "if (" not in source.body
    assert "metile_consecutive" not in source.header + source.body


def test_f14_bf16_travels_as_bits_and_computes_as_bfloat() -> None:
    body = msl(row_func(adjacent(256), bf16, extent=256)).body
    assert body.count("as_type<bfloat>(vector.") == 4
    assert body.count("as_type<ushort>(") == 4
    assert not re.search(r"vector(\.\w)? [-+*/<>] ", body)


def test_v3_text_without_groups() -> None:
    source = msl(row_func(adjacent(256)), schedule=SCALAR)
    assert "metile_" not in source.body + source.header
    assert "4" not in re.findall(r"float(\d?)", source.body)


# Run: every position of the end of a row, other origins, other masks


@functools.cache
def kernels() -> dict[str, KernelSource]:
    made = {}
    for dtype in DTYPES:
        for thirds in (False, True):
            func = row_func(adjacent(32 * 4), dtype, thirds=thirds)
            name = f"{dtype}_{'thirds' if thirds else 'all'}"
            made[f"msl_{name}"], made[f"cpp_{name}"] = msl(func), cpp(func)
            made[f"wide_{name}"] = cpp(func, index_bits=64)
            func = row_func(adjacent(32 * 8, 8), dtype, thirds=thirds)
            made[f"cuda_{name}"] = compile_kernel(func, Context(CUDA))
            func = row_func(striped(32 * 4), dtype, thirds=thirds)
            made[f"striped_{name}"] = cpp(func)
            made[f"wide_striped_{name}"] = cpp(func, index_bits=64)
        for kind in (None, BinaryKind.ADD, BinaryKind.MAXIMUM, BinaryKind.MINIMUM):
            name = f"{dtype}_copy_{kind.value if kind else 'same'}"
            made[f"msl_{name}"], made[f"cpp_{name}"] = (
                msl(copy(dtype, kind)),
                cpp(copy(dtype, kind)),
            )
            made[f"one_{name}"] = msl(copy(dtype, kind), schedule=SCALAR)
    made["wrapping"] = emit_msl(wrapping(), Context(METAL))
    return made


@pytest.fixture(scope="module", params=COMPILERS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    return build(kernels(), request.param, tmp_path_factory.mktemp("groups"))


def numbers(n: int, dtype: DType) -> Array:
    """0, 1, 2, ... as elements; exact in bf16 up to 256."""
    x = np.arange(n, dtype=np.float32)
    return (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == bf16 else x.astype(NUMPY[dtype])


def sentinel(n: int, dtype: DType) -> Array:
    return np.full(n * dtype.bytes, 0xA5, np.uint8).view(NUMPY[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["msl", "cuda", "cpp", "wide", "striped", "wide_striped"])
def test_f52_every_end_and_origin_of_a_row(library: Library, kind: str, dtype: DType) -> None:
    """n = 1..70, origins 0 to 3 and below 0, all elements and those with i % 3 != 0: exactly these
    change; what lies beside them, and behind the input, stays or is never read."""
    room, size = 96, 256 if kind == "cuda" else 128
    for thirds in (False, True):
        name = f"{kind}_{dtype}_{'thirds' if thirds else 'all'}"
        for n, start in [(n, 0) for n in range(1, 71)] + [
            (70, s) for s in (1, 2, 3, -1, -2, 2 - size)
        ]:
            at = np.arange(max(start, 0), n)
            at = at[at % 3 != 0] if thirds else at
            at = at[at < start + size]
            given = sentinel(room, dtype)
            given[:n] = numbers(n, dtype)
            output = sentinel(room, dtype)
            expected = output.copy()
            expected[at] = numbers(2 * room, dtype)[2 * at]
            found = library.run(
                name, {"x": given, "y": output}, {"n": n, "start": start}, (1,), keep=True
            )
            assert found["y"].tobytes() == expected.tobytes(), (n, start, thirds)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_f14_a_tile_is_copied_and_computed_as_scalars_are(library: Library, dtype: DType) -> None:
    """32 by 16, value = index: identity; then x + x, maximum, compare and select."""
    x = numbers(512, dtype)
    for kind in ("same", "add", "maximum", "minimum"):
        found = [
            library.run(f"{text}_{dtype}_copy_{kind}", {"x": x, "y": x}, {}, (1,))["y"].tobytes()
            for text in ("msl", "cpp", "one")
        ]
        assert found[0] == found[1] == found[2], kind
        if kind == "same":
            assert found[0] == x.tobytes()


def wrapping() -> Func:
    """y[thread * 4 + r] = x[base + thread * 4 + r], offsets of 32 bits that may wrap, no mask."""
    b = Builder()
    x, y = Value(PointerType(f16), "x"), Value(PointerType(f16, writable=True), "y")
    base = Value(ScalarType(u32), "base")
    two = b.add(metal.Constant(2, u32))
    thread = b.add(metal.ThreadIndex())
    first = b.add(metal.Binary(BinaryKind.SHL, thread, two))
    numbers = [b.add(metal.Constant(r, u32)) for r in range(4)]
    here = [b.add(metal.Binary(BinaryKind.ADD, first, r)) for r in numbers]
    there = [b.add(metal.Binary(BinaryKind.ADD, base, i)) for i in here]
    none = (None,) * 4
    vector = b.add(metal.LoadGroup(x, tuple(there), none, none, access=1))
    values = tuple(b.add(metal.Extract(vector, lane)) for lane in range(4))
    b.emit(metal.StoreGroup(y, tuple(here), values, none, checked=False, access=2))
    return Func("wrapping", (x, base, y), b.block(), threads=32)


def test_v2_an_index_that_wraps_takes_the_scalar_path(library: Library) -> None:
    """2**32 elements, of which only the ends are touched; behind them a vector would read on."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    with mmap.mmap(-1, (1 << 33) + mmap.PAGESIZE, flags=flags) as memory:
        x = np.frombuffer(memory, np.float16)
        x[:130] = np.arange(2, 132)
        x[(1 << 32) - 2 : 1 << 32] = 0, 1
        x[1 << 32 : (1 << 32) + 2] = -1
        base = (1 << 32) - 2
        found = library.run(
            "wrapping", {"x": x, "y": np.zeros(128, np.float16)}, {"base": base}, (1,)
        )
        del x
    assert found["y"].tolist() == list(range(128))


# CPU code


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layout", [adjacent, striped], ids=["adjacent", "striped"])
@pytest.mark.parametrize("bits", [32, 64])
def test_cpu_loops_over_registers_are_vectorised(
    compiler: str, dtype: DType, layout: object, bits: int
) -> None:
    """The loop over whole threads, whose origin is known when the kernel runs, in either order."""
    source = cpp(row_func(layout(1024), dtype), index_bits=bits)  # type: ignore[operator]
    text = text_of({"k": source})
    line = next(
        number
        for number, text in enumerate(text.splitlines(), 1)
        if "thread = 0; thread < whole;" in text
    )
    said, _ = remarks(compiler, text)
    assert re.search(rf":{line}:\d+: .*vectorized", said), said


def test_cpu_loops_end_where_the_first_mask_fails() -> None:
    """A row of 1009 on 256 threads: 252 have all four elements, which is known beforehand."""
    body = cpp(row_func(adjacent(1024), extent=1009)).body
    assert "for (uint32_t thread = 0; thread < 252u; ++thread) {" in body
    assert "for (uint32_t thread = 252u; thread < 256; ++thread) {" in body
    whole = cpp(row_func(adjacent(1024), extent=1024)).body
    assert whole.count("for (uint32_t thread") == 1
