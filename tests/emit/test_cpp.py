"""C++ kernels: loops over threads mean what lockstep execution means (SPEC X4, C1-C3)."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u16, u32, u64
from metile_mlx.emit.cpp import emit_cpp
from metile_mlx.emit.phases import Plan
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Block, Func, Value
from metile_mlx.ir.metal import (
    Barrier,
    Binary,
    Compare,
    If,
    Load,
    NumPrograms,
    ProgramId,
    Select,
    Shuffle,
    Store,
    ThreadgroupStore,
    Unary,
    Yield,
)
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.layout.affine import AffineMap
from tests.emit.compiled import COMPILERS, Library, build, remarks, text_of
from tests.emit.kernels import Tile, cpu_context, output_pointer, source_pointer, transpose8
from tests.support import simulate
from tests.support.arithmetic import NUMPY, Array, from_bf16

WIRES = (f16, bf16, f32, i32, u32, bool_)


def permutation(rng: random.Random, bits: int, xor: bool = True) -> AffineMap:
    order = rng.sample(range(bits), bits)
    return AffineMap.from_bit_order(order, rng.randrange(1 << bits) if xor else 0)


def exchanged(threads: int, dtype: DType, moves: AffineMap) -> Func:
    tile = Tile(threads, dtype)
    tile.store(tile.exchange(tile.values, moves))
    return tile.func()


def shuffled(threads: int, dtype: DType, moves: AffineMap) -> Func:
    tile = Tile(threads, dtype)
    tile.store(tile.shuffle(tile.values, moves))
    return tile.func()


def computed_around_exchange(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """Work before and after; the source value and a mask are used on both sides of the barriers."""
    tile = Tile(threads, dtype)
    doubled = tile.op(BinaryKind.ADD, tile.values, tile.values, "doubled")
    moved = tile.exchange(doubled, moves)
    smaller = tile.b.add(Compare(CompareKind.LT, tile.values, moved), "smaller")
    mixed = tile.b.add(Select(smaller, tile.values, moved), "mixed")
    tile.store(tile.op(BinaryKind.MUL, mixed, tile.op(BinaryKind.ADD, moved, doubled)))
    return tile.func()


def chained(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """Two exchanges through one scratch array, a shuffle between, everything used at the end."""
    tile = Tile(threads, dtype)
    first = tile.exchange(tile.values, moves, "first")
    low = AffineMap.from_bit_order((1, 2, 3, 4, 0), 9)
    second = tile.shuffle(tile.op(BinaryKind.ADD, first, tile.values), low, "second")
    third = tile.exchange(second, moves, "third")
    tile.store(tile.op(BinaryKind.SUB, tile.op(BinaryKind.ADD, first, second), third))
    return tile.func()


def two_shuffles(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """A shuffle of a shuffle, and one of a value that only the thread index makes."""
    tile = Tile(threads, dtype)
    low = AffineMap.from_bit_order((2, 0, 4, 1, 3), moves.constant & 31)
    once = tile.shuffle(tile.values, low, "once")
    twice = tile.shuffle(tile.op(BinaryKind.ADD, once, tile.values), low, "twice")
    lane = tile.cast(tile.slot(low), u16)
    index = tile.op(BinaryKind.MUL, tile.thread, tile.const(3, u32))
    moved_index = tile.b.add(Shuffle(index, lane), "moved_index")
    tile.store(tile.op(BinaryKind.ADD, twice, tile.cast(moved_index, dtype)))
    return tile.func()


def shuffle_after_barrier(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """The shuffle moves a value from before the barriers."""
    tile = Tile(threads, dtype)
    moved = tile.exchange(tile.values, moves)
    low = AffineMap.from_bit_order((4, 3, 2, 1, 0))
    early = tile.shuffle(tile.values, low, "early")
    tile.store(tile.op(BinaryKind.ADD, moved, early))
    return tile.func()


def scattered(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """Stores at a permutation of the thread index, and a second output with its own mask."""
    tile = Tile(threads, dtype)
    base = tile.op(BinaryKind.SUB, tile.offset, tile.cast(tile.thread, u64))
    index = tile.op(BinaryKind.ADD, base, tile.cast(tile.slot(moves), u64))
    tile.b.emit(Store(tile.destination, index, tile.values, tile.in_bounds))
    half = tile.b.add(Compare(CompareKind.LT, tile.thread, tile.const(threads // 2 - 3, u32)))
    mask = tile.op(BinaryKind.AND, tile.in_bounds, half, "mask")
    ragged = output_pointer(dtype, "ragged")
    tile.b.emit(Store(ragged, tile.offset, tile.values, mask))
    return tile.func(extra=(ragged,))


def ordered_stores(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """One thread stores the same element before and after a barrier: the second store stays."""
    tile = Tile(threads, dtype)
    tile.store(tile.values)
    moved = tile.exchange(tile.values, moves)
    tile.store(tile.op(BinaryKind.ADD, moved, tile.values))
    return tile.func()


def branches(threads: int, dtype: DType, moves: AffineMap) -> Func:
    """A branch that yields values per thread, one that yields uniform ones, one that only
    stores."""
    tile = Tile(threads, dtype)
    even_id = tile.op(BinaryKind.AND, tile.b.add(ProgramId(0)), tile.const(1, i32))
    even = tile.b.add(Compare(CompareKind.EQ, even_id, tile.const(0, i32)), "even")

    def block(build: Callable[[Tile], tuple[Value, ...]]) -> Block:
        outer, tile.b = tile.b, tile.b.child()
        values = build(tile)
        tile.b.emit(Yield(values))
        made, tile.b = tile.b.block(), outer
        return made

    then = block(lambda t: (t.op(BinaryKind.ADD, t.values, t.values, "sum"), t.values))
    otherwise = block(lambda t: (t.values, t.op(BinaryKind.MUL, t.values, t.values, "product")))
    first, second = tile.b.emit(If(even, then, otherwise), ("first", "second"))
    (step,) = tile.b.emit(
        If(
            even,
            block(lambda t: (t.const(2, dtype),)),
            block(lambda t: (t.b.add(Load(t.source, t.const(0, u64))),)),
        ),
        ("step",),
    )
    moved = tile.exchange(tile.op(BinaryKind.ADD, first, step), moves)
    tile.store(tile.op(BinaryKind.SUB, moved, second))
    only_even = output_pointer(dtype, "only_even")

    def stores(t: Tile) -> tuple[Value, ...]:
        t.store(t.values, only_even)
        return ()

    tile.b.emit(If(even, block(stores), block(lambda t: ())))
    return tile.func(extra=(only_even,))


STRUCTURES = (
    computed_around_exchange,
    chained,
    two_shuffles,
    shuffle_after_barrier,
    scattered,
    ordered_stores,
    branches,
)


def kernels() -> dict[str, Func]:
    rng = random.Random(5)
    made: dict[str, Func] = {}
    for threads, dtype in itertools.product((32, 64, 256), WIRES):
        bits = threads.bit_length() - 1
        for number in range(2):
            moves = permutation(rng, bits)
            made[f"exchanged_{threads}_{dtype}_{number}"] = exchanged(threads, dtype, moves)
            low = permutation(rng, 5)
            made[f"shuffled_{threads}_{dtype}_{number}"] = shuffled(threads, dtype, low)
    made["exchanged_1024_f16_0"] = exchanged(1024, f16, permutation(rng, 10))
    made["exchanged_1024_i32_0"] = exchanged(1024, i32, permutation(rng, 10))
    for build_kernel, threads, dtype in itertools.product(STRUCTURES, (32, 128), (f32, f16)):
        bits = threads.bit_length() - 1
        name = f"{build_kernel.__name__}_{threads}_{dtype}"
        made[name] = build_kernel(threads, dtype, permutation(rng, bits))
    made["transpose8"] = transpose8(f32, u64)
    return made


KERNELS = kernels()
BATCHES = 5


@pytest.fixture(scope="module", params=COMPILERS)
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    folder: Path = tmp_path_factory.mktemp(request.param.replace("+", "x"))
    sources = {name: emit_cpp(func, cpu_context()) for name, func in KERNELS.items()}
    return build(sources, request.param, folder)


def payload(size: int, dtype: DType, rng: np.random.Generator) -> Array:
    """Arbitrary bits, signalling NaNs and -0.0 among them."""
    if dtype == bool_:
        return rng.integers(0, 2, size).astype(bool)
    return rng.integers(0, 256, size * dtype.bytes, np.uint8).view(NUMPY[dtype])


def numbers(size: int, dtype: DType, rng: np.random.Generator) -> Array:
    return rng.integers(-40, 40, size).astype(NUMPY[dtype])


@pytest.mark.parametrize("name", KERNELS)
def test_loops_are_lockstep(library: Library, name: str) -> None:
    """Every kernel does to the bit what the simulator does, in one range of programs and in
    three."""
    func = KERNELS[name]
    rng = np.random.default_rng(1)
    (dtype,) = (p.type.dtype for p in func.params if p.name == "source")  # type: ignore[union-attr]
    moves_only = name.startswith(("exchanged", "shuffled", "transpose"))
    # Two programs are out of bounds: their loads give the fill, their stores do nothing.
    make = payload if moves_only else numbers
    arrays = {"source": make(func.threads * BATCHES, dtype, rng)}
    for param in func.params:
        if isinstance(param.type, PointerType) and param.type.writable:
            arrays[param.name] = np.zeros(func.threads * BATCHES, NUMPY[param.type.dtype])
    scalars = {"batches": BATCHES}
    expected, stored = simulate.run(func, arrays, scalars, (BATCHES + 2,))
    for parts in (1, 3):
        got = library.run(name, arrays, scalars, (BATCHES + 2,), parts)
        for output, written in stored.items():
            want = np.where(written, expected[output], np.zeros_like(expected[output]))
            assert got[output].tobytes() == want.tobytes(), (output, parts)


def grid_kernel() -> Func:
    """out[i] = x + 10 y + 100 z + 1000 * the extents' sum, at the program's linear id."""
    tile = Tile(32, i32)
    add: Callable[..., Value] = tile.b.add
    ids = [add(ProgramId(axis), f"id_{axis}") for axis in range(3)]
    extents = [add(NumPrograms(axis), f"extent_{axis}") for axis in range(3)]
    mul, plus = BinaryKind.MUL, BinaryKind.ADD
    row = tile.op(plus, tile.op(mul, ids[2], extents[1]), ids[1])
    linear = tile.op(plus, tile.op(mul, row, extents[0]), ids[0], "linear")
    total = tile.op(plus, tile.op(plus, extents[0], extents[1]), extents[2])
    value = ids[0]
    for factor, part in ((10, ids[1]), (100, ids[2]), (1000, total)):
        value = tile.op(plus, value, tile.op(mul, part, tile.const(factor, i32)))
    base = tile.op(mul, tile.cast(linear, u64), tile.const(32, u64))
    index = tile.op(plus, base, tile.cast(tile.thread, u64))
    lane = tile.op(plus, value, tile.cast(tile.thread, i32))
    out = output_pointer(i32, "out")
    tile.b.emit(Store(out, index, lane))
    return Func("grid", (tile.source, tile.batches, out), tile.b.block(), threads=32)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_all_three_program_axes(compiler: str, tmp_path: Path) -> None:
    """F20: ids along x, y and z; a range of programs may begin and end anywhere."""
    library = build({"grid": emit_cpp(grid_kernel(), cpu_context())}, compiler, tmp_path)
    grid = (2, 3, 5)
    arrays = {"source": np.zeros(32, np.int32), "out": np.zeros(30 * 32, np.int32)}
    expected, _ = simulate.run(grid_kernel(), arrays, {"batches": 0}, grid)
    for parts in (1, 7, 30):
        got = library.run("grid", arrays, {"batches": 0}, grid, parts)
        assert np.array_equal(got["out"], expected["out"])
    assert len(np.unique(expected["out"])) > 30


def scalar_kernel() -> tuple[Func, dict[str, float]]:
    given = {"a": (-7, i32), "b": (4_000_000_000, u32), "c": (0.1, f32), "d": (True, bool_)}
    tile = Tile(32, i32)
    params = [Value(ScalarType(dtype), name) for name, (_, dtype) in given.items()]
    outputs = []
    for param, (name, (_, dtype)) in zip(params, given.items(), strict=True):
        outputs.append(output_pointer(dtype, f"out_{name}"))
        tile.b.emit(Store(outputs[-1], tile.const(0, u64), param))
    func = Func(
        "scalars", (tile.source, tile.batches, *params, *outputs), tile.b.block(), threads=32
    )
    return func, {name: value for name, (value, _) in given.items()}


@pytest.mark.parametrize("compiler", COMPILERS)
def test_scalars_arrive_by_value(compiler: str, tmp_path: Path) -> None:
    func, scalars = scalar_kernel()
    library = build({"scalars": emit_cpp(func, cpu_context())}, compiler, tmp_path)
    arrays = {"source": np.zeros(32, np.int32)}
    arrays |= {p.name: np.zeros(1, NUMPY[p.type.dtype]) for p in func.params[-4:]}  # type: ignore[union-attr]
    got = library.run("scalars", arrays, {"batches": 1, **scalars}, (1,))
    assert got["out_a"][0] == -7
    assert got["out_b"][0] == 4_000_000_000
    assert got["out_c"][0] == np.float32(0.1)
    assert got["out_d"][0]


def uniform_store() -> Func:
    """One element per program, the same in every thread, between two stores of the tile."""
    tile = Tile(64)
    first = output_pointer(f32, "first")
    batch = tile.cast(tile.b.add(ProgramId(0)), u64)
    element = tile.b.add(Load(tile.source, batch, tile.in_bounds, tile.const(3, f32)), "element")
    tile.store(tile.values)
    tile.b.emit(Store(first, batch, element, tile.in_bounds))
    tile.store(tile.op(BinaryKind.ADD, tile.values, element))
    return tile.func(extra=(first,))


@pytest.mark.parametrize("compiler", COMPILERS)
def test_uniform_stores_run_once_and_in_order(compiler: str, tmp_path: Path) -> None:
    source = emit_cpp(uniform_store(), cpu_context())
    library = build({"uniform": source}, compiler, tmp_path)
    x = np.arange(64 * BATCHES, dtype=np.float32)
    arrays = {"source": x, "destination": np.zeros_like(x), "first": np.zeros(8, np.float32)}
    got = library.run("uniform", arrays, {"batches": BATCHES}, (7,))
    assert np.array_equal(got["first"], [0, 1, 2, 3, 4, 0, 0, 0])
    assert np.array_equal(got["destination"], x + np.repeat(x[:BATCHES], 64))
    assert [phase.once for phase in Plan(uniform_store()).phases] == [False, True, False]


def ragged(dtype: DType, threads: int = 64) -> Func:
    """out = x * y + y for the first n elements, every access under the lane's own bounds check."""
    x, y, out = source_pointer(dtype, "x"), source_pointer(dtype, "y"), output_pointer(dtype, "out")
    n = Value(ScalarType(i32), "n")
    m = Tile(threads, dtype)
    program = m.b.add(ProgramId(0), "program_id")
    start = m.op(BinaryKind.MUL, program, m.const(threads, i32))
    i = m.op(BinaryKind.ADD, start, m.cast(m.thread, i32), "i")
    mask = m.b.add(Compare(CompareKind.LT, m.cast(i, u32), m.cast(n, u32)), "mask")
    a = m.b.add(Load(x, m.offset, mask, m.const(0, dtype)), "a")
    b = m.b.add(Load(y, m.offset, mask, m.const(0, dtype)), "b")
    value = m.op(BinaryKind.ADD, m.op(BinaryKind.MUL, a, b), b)
    m.b.emit(Store(out, m.offset, value, mask))
    return Func("ragged", (m.source, m.batches, x, y, n, out), m.b.block(), threads=threads)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_ragged_ends_touch_nothing_beyond(compiler: str, tmp_path: Path) -> None:
    """K2: every length around a multiple of the tile; whole tiles take the loop without masks."""
    kernels = {str(dtype): emit_cpp(ragged(dtype), cpu_context()) for dtype in (f32, f16, bf16)}
    library = build(kernels, compiler, tmp_path)
    rng = np.random.default_rng(4)
    for dtype, n in itertools.product((f32, f16, bf16), (0, 1, 63, 64, 65, 127, 128, 130)):
        given = {name: payload(n, dtype, rng) for name in ("x", "y")}
        arrays = {"source": np.zeros(64 * 4, NUMPY[dtype]), "out": np.zeros(n, NUMPY[dtype])}
        expected, _ = simulate.run(ragged(dtype), {**arrays, **given}, {"batches": 4, "n": n}, (3,))
        # The output goes on past n: a store there shows.
        room = np.zeros(n + 64, NUMPY[dtype])
        got = library.run(
            str(dtype), {**arrays, **given, "out": room}, {"batches": 4, "n": n}, (3,)
        )
        same = got["out"][:n] == expected["out"]
        nan = np.isnan(from_bf16(expected["out"]) if dtype == bf16 else expected["out"])
        assert (same | nan).all(), (dtype, n)
        assert not got["out"][n:].any()


def pointwise(dtype: DType, ragged: bool = False) -> Func:
    """Contiguous arrays and some arithmetic; on f32 a minimum, which lets NaN win, and a root."""
    tile = Tile(256, dtype)
    other = source_pointer(dtype, "other")
    y = tile.b.add(Load(other, tile.offset, tile.in_bounds, tile.const(0, dtype)), "y")
    value = tile.op(BinaryKind.ADD, tile.op(BinaryKind.MUL, tile.values, y), y)
    if dtype == f32:
        value = tile.op(BinaryKind.MINIMUM, value, y)
        value = tile.b.add(Unary(UnaryKind.FLOOR, tile.b.add(Unary(UnaryKind.SQRT, value))))
    if ragged:
        inside = tile.b.add(Compare(CompareKind.LT, tile.thread, tile.const(200, u32)), "inside")
        tile.b.emit(Store(tile.destination, tile.offset, value, inside))
    else:
        tile.store(value)
    return tile.func(extra=(other,))


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("dtype", [f16, bf16, f32, i32], ids=str)
@pytest.mark.parametrize("ragged", [False, True])
def test_contiguous_loops_are_vectorised_without_gathers(
    compiler: str, dtype: DType, ragged: bool
) -> None:
    """An index that is uniform + thread is one contiguous access, under a mask or not."""
    func = pointwise(dtype, ragged)
    said, assembly = remarks(compiler, text_of({"k": emit_cpp(func, cpu_context())}))
    assert "vectorized" in said
    assert not re.search(r"v?p?gather|scatter", assembly)


@pytest.mark.parametrize("compiler", [name for name in COMPILERS if name == "g++"])
def test_scratch_moves_are_no_gathers(compiler: str) -> None:
    """The slots of an exchange are constants of an unrolled loop, which g++ keeps as moves."""
    for threads in (64, 256):
        bits = threads.bit_length() - 1
        moves = AffineMap.from_bit_order([(b + bits // 2) % bits for b in range(bits)])
        text = text_of({"k": emit_cpp(exchanged(threads, f32, moves), cpu_context())})
        assert not re.search(r"v?p?gather|scatter", remarks(compiler, text)[1])


def test_uniform_work_stands_outside_the_loops() -> None:
    body = emit_cpp(transpose8(f32, u64), cpu_context()).body
    head, *loops = body.split("for (uint32_t ")
    assert "const bool in_bounds" in head
    assert "const uint64_t base" in head
    assert len(loops) == 3, body
    assert not any("in_bounds =" in loop or "base =" in loop for loop in loops)


def test_index_work_is_computed_again_rather_than_kept() -> None:
    """Only what a loop can't recompute is put into an array: here nothing but the scratch
    itself."""
    body = emit_cpp(transpose8(f32, u64), cpu_context()).body
    assert re.findall(r"alignas\(64\) (.*);", body) == ["float scratch_f32[64]"]
    kept = emit_cpp(
        computed_around_exchange(64, f32, AffineMap.from_bit_order((3, 4, 5, 0, 1, 2))),
        cpu_context(),
    ).body
    assert sorted(re.findall(r"alignas\(64\) float (\w+)\[64\]", kept)) == [
        "converted_all",
        "doubled_all",
        "scratch_f32",
        "values_all",
    ]


def test_a_barrier_without_conflict_ends_no_loop() -> None:
    """The release barrier of the last exchange orders nothing that follows."""
    plan = Plan(transpose8(f32, u64))
    assert [len(phase.segments) for phase in plan.phases] == [1, 1]


def test_a_release_barrier_before_reuse_ends_a_loop() -> None:
    """C3: the second exchange's stores wait for the first one's loads in every thread."""
    tile = Tile(64)
    moves = AffineMap.from_bit_order((3, 4, 5, 0, 1, 2))
    tile.store(tile.exchange(tile.exchange(tile.values, moves, "first"), moves, "second"))
    assert len(Plan(tile.func()).phases) == 4


def test_shuffles_of_independent_values_share_a_cut() -> None:
    tile = Tile(64)
    low = AffineMap.from_bit_order((1, 2, 3, 4, 0))
    other = tile.op(BinaryKind.ADD, tile.values, tile.values, "other")
    first, second = tile.shuffle(tile.values, low), tile.shuffle(other, low)
    tile.store(tile.op(BinaryKind.ADD, first, second))
    (phase,) = Plan(tile.func()).phases
    loads = [[type(item).__name__ for item in segment.ops] for segment in phase.segments]
    assert phase.grouped
    assert sum("Shuffle" in names for names in loads) == 1, loads


def test_names_that_mean_something_here_are_avoided() -> None:
    """X1: variables called like our own locals, C++ words and library names."""
    tile = Tile(32)
    words = ("buffers", "thread", "lane", "register", "float", "std", "exp", "program_x", "end")
    value = tile.values
    for word in words:
        value = tile.b.add(Binary(BinaryKind.ADD, value, tile.values), word)
    tile.store(value)
    source = emit_cpp(tile.func("int"), cpu_context())
    declared = re.findall(r"const float (\w+) =", source.body)
    assert not set(words) & set(declared)
    assert len(set(declared)) == len(declared)
    assert source.body.isascii()


def test_text_is_a_function_of_the_kernel() -> None:
    """Two builds of one kernel: the same text and name; another body: another name."""
    sources: list[KernelSource] = [emit_cpp(transpose8(f32, u64), cpu_context()) for _ in range(2)]
    assert sources[0] == sources[1]
    assert emit_cpp(transpose8(f16, u64), cpu_context()).name != sources[0].name
    assert sources[0].threadgroup_bytes == 256
    assert [a.name for a in sources[0].inputs] == ["source", "batches"]
    assert [a.is_scalar for a in sources[0].inputs] == [False, True]


def test_the_simulator_rejects_a_missing_barrier() -> None:
    """The oracle of this file can tell: without the barrier the exchange is a race."""
    func = transpose8(f32, u64)
    ops = tuple(item for item in func.body.ops if not isinstance(item, Barrier))
    assert any(isinstance(item, ThreadgroupStore) for item in ops)
    arrays = {"source": np.zeros(64, np.float32), "destination": np.zeros(64, np.float32)}
    with pytest.raises(simulate.SimulationError):
        simulate.run(func.with_body(Block(ops)), arrays, {"batches": 1}, (1,))
