"""Arrays of every size and form, masks, fills and partial stores, alike on every backend."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import emulator
from metile_mlx.target import METAL
from tests.end_to_end.conftest import BACKENDS
from tests.support.public import DTYPES, payload, same_bits

pytestmark = pytest.mark.usefixtures("gpu")
SHAPES = ((1,), (7,), (8,), (9,), (33,), (1, 7), (3, 5), (1, 37), (5, 3))


@metile.kernel
def copy(x, y, n, BLOCK: metile.constexpr = 32):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    target.store(i, source.load(i))


def copied(x: mx.array, backend: str | None = None, **options: Any) -> mx.array:
    grid = (metile.cdiv(x.size, 32),)
    return copy[grid](x, metile.empty(x.shape, x.dtype), x.size, backend=backend, **options)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_around_the_constant_address_space(size: int, dtype: str, backend: str) -> None:
    """F08, F12: inputs below 8 elements arrive as `constant`, empty ones are never bound."""
    x = payload(dtype, (size,))
    assert same_bits(copied(x, backend), x)


@pytest.mark.parametrize("shape", SHAPES)
def test_ragged_copies_touch_nothing_outside(shape: tuple[int, ...], backend: str) -> None:
    """F55: on `metal` here any access outside an array raises, masked off or not."""
    x = payload("f32", shape)
    assert same_bits(copied(x, backend), x)


def test_no_dimensions(backend: str) -> None:
    """F09, SPEC X1: a 0-d array is one element, in and out."""
    assert same_bits(copied(mx.array(3.5), backend), mx.array(3.5))


@pytest.mark.parametrize("shape", [(0, 64), (3, 0), (0,)])
def test_empty_arrays_are_empty_results(shape: tuple[int, ...], backend: str, gpu: Any) -> None:
    """F12: the right shape and dtype, and no launch."""
    before = len(gpu.calls)
    for grid in ((0,), (2,)):
        made = copy[grid](mx.zeros(shape), metile.empty(shape, metile.f32), 0, backend=backend)
        assert (made.shape, made.dtype) == (shape, mx.float32)
        mx.eval(made)
    assert len(gpu.calls) == before


def test_an_empty_grid_stores_nothing(backend: str) -> None:
    made = copy[(0,)](mx.ones((4,)), metile.empty((4,), metile.f32), 4, backend=backend)
    assert made.tolist() == [0, 0, 0, 0]


BIG = mx.random.normal((6, 7, 24), key=mx.random.key(3))
VIEWS = {
    "transposed": BIG.transpose(1, 0, 2),
    "all axes reversed": BIG.T,
    "every second": BIG[::2],
    "every second of the last": BIG[..., ::2],
    "reversed": BIG[::-1, :, ::-1],
    "a column": BIG[:, :, 5],
    "with an offset": BIG[1:, 2:, 3:],
    "a row broadcast": mx.broadcast_to(BIG[0, 0], (5, 24)),
    "one value broadcast": mx.broadcast_to(BIG[0, 0, 0], (9, 8)),
    "expanded": mx.expand_dims(BIG[:, 1], 1),
    "every third of a flat one": mx.reshape(BIG, (-1,))[::3],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_as_their_elements(name: str, backend: str) -> None:
    """F10, SPEC X8: equal to the contiguous copy, bit for bit; the array itself is untouched."""
    x = VIEWS[name]
    before = mx.array(x)
    assert same_bits(copied(x, backend), mx.contiguous(x))
    assert same_bits(mx.contiguous(x), before)


@pytest.mark.emulator
def test_f10_views_in_the_emulator() -> None:
    with emulator.checked(schedules=2):
        for x in VIEWS.values():
            assert same_bits(copied(x, "emulator"), mx.contiguous(x))


@metile.kernel
def scale_rows(x, w, y, rows, COLUMNS: metile.constexpr):
    source = metile.tensor(x, shape=(rows, COLUMNS), access="read")
    weights = metile.tensor(w, shape=(COLUMNS,), access="read")
    target = metile.tensor(y, shape=(rows, COLUMNS), access="write")
    row = metile.program_id(0)
    i = metile.arange(0, 32)
    target.store((row, i), source.load((row, i)) * weights.load(i))


@pytest.mark.parametrize("columns", [1, 4, 8, 24, 31])
def test_strided_weights_and_rows(columns: int, backend: str) -> None:
    """F10: a weight that is every third element, rows that are columns of another array."""
    w = mx.random.normal((3 * columns,), key=mx.random.key(1))[::3]
    x = mx.random.normal((columns, 5), key=mx.random.key(2)).T
    made = scale_rows[(5,)](
        x, w, metile.empty((5, columns), mx.float32), 5, COLUMNS=columns, backend=backend
    )
    assert same_bits(made, mx.contiguous(x) * mx.contiguous(w))


@metile.kernel
def missing(x, y, z, NUMBER: metile.constexpr):
    i = metile.arange(0, 64)
    source = metile.tensor(x, shape=(64,))
    metile.tensor(y, shape=(64,), access="write").store(i, source.load(i + 3, fill=NUMBER))
    whole = metile.full(64, NUMBER, metile.f32)
    metile.tensor(z, shape=(64,), access="write").store(i, whole)


@pytest.mark.parametrize("number", [math.nan, -0.0, math.inf])
def test_k2_a_literal_that_is_no_number_or_signed(number: float, backend: str) -> None:
    """As a fill and as a tile: NaN, which equals nothing, and the zero that equals another."""
    out = metile.empty(64, mx.float32)
    filled, whole = missing[1](mx.arange(64.0), out, out, NUMBER=number, backend=backend)
    held = [number] * 64
    assert same_bits(filled, mx.array([*range(3, 64), *held[:3]], mx.float32))
    assert same_bits(whole, mx.array(held))


@metile.kernel
def largest(x, y, NUMBER: metile.constexpr):
    i = metile.arange(0, 32)
    target = metile.tensor(y, shape=33, access="write")
    target.store(i, metile.tensor(x, shape=3).load(i, fill=NUMBER))
    target.store(32, NUMBER)


@pytest.mark.parametrize(
    ("dtype", "number"), [(mx.uint64, 2**64 - 1), (mx.int64, -(2**63)), (mx.int8, -128)]
)
def test_k4_the_ends_of_integers(dtype: mx.Dtype, number: int, backend: str) -> None:
    x = mx.array([1, 2, 3], dtype)
    made = largest[1](x, metile.empty(33, dtype), NUMBER=number, backend=backend)
    assert made.tolist() == [1, 2, 3, *[number] * 30]


@metile.kernel
def axes(y, nx, ny, nz):
    target = metile.tensor(y, shape=(nz, ny, nx), access="write")
    px, py, pz = metile.program_id(0), metile.program_id(1), metile.program_id(2)
    count = metile.num_programs(0) + 10 * metile.num_programs(1) + 100 * metile.num_programs(2)
    target.store((pz, py, px), px + 10 * py + 100 * pz + 1000 * count)


def test_three_grid_axes(backend: str) -> None:
    """F20, F15: every program of (2, 3, 5), each with its own ids and the same counts."""
    made = axes[(2, 3, 5)](metile.empty((5, 3, 2), mx.int32), 2, 3, 5, backend=backend)
    ids = mx.arange(2) + 10 * mx.arange(3)[:, None] + 100 * mx.arange(5)[:, None, None]
    assert mx.array_equal(made, ids + 1000 * (2 + 30 + 500))


@metile.kernel
def numbered(y, nx, ny):
    """Each program stores its number, from 1 on, in all of its elements."""
    target = metile.tensor(y, shape=(ny, nx, 256), access="write")
    px, py = metile.program_id(0), metile.program_id(1)
    number = py * nx + px + 1
    target.store((py, px, metile.arange(0, 256)), metile.full(256, number, metile.i32))


@pytest.mark.parametrize("grid", [(24, 1, 1), (24, 64, 1), (257, 1, 1)])
def test_f15_every_program_of_the_grid_runs_whole(grid: tuple[int, int, int], backend: str) -> None:
    """256 threads each: exactly 1 to N, each of them 256 times."""
    nx, ny, _ = grid
    made = numbered[grid](metile.empty((ny, nx, 256), mx.int32), nx, ny, backend=backend)
    expected = 1 + mx.arange(nx * ny).reshape(ny, nx, 1)
    assert mx.array_equal(made, mx.broadcast_to(expected, made.shape))


@metile.kernel
def tile_at(x, y, rows, columns, row, column, SIZE: metile.constexpr):
    source = metile.tensor(x, shape=(rows, columns), access="read")
    target = metile.tensor(y, shape=(SIZE,), access="write")
    i = metile.arange(0, SIZE)
    target.store(i, source.load((row, column + i), fill=-1.0))


def test_bounds_past_sixteen_bits(backend: str) -> None:
    """F23: column 39,999 is inside, column 40,000 is not."""
    x = mx.arange(80_000, dtype=mx.float32).reshape(2, 40_000)
    made = tile_at[(1,)](
        x, metile.empty((32,), mx.float32), 2, 40_000, 0, 39_984, SIZE=32, backend=backend
    )
    assert made.tolist() == [*range(39_984, 40_000), *[-1] * 16]


@pytest.mark.parametrize("origin", [(-1, 0), (2, 0), (0, -40), (0, 90), (-(2**31), 0), (0, -5)])
def test_tiles_partly_and_wholly_outside_are_fill(origin: tuple[int, int], backend: str) -> None:
    """SPEC K2, F53: outside the declared bounds lanes are `fill`, whatever lies in memory there."""
    x = mx.arange(1, 81, dtype=mx.float32).reshape(2, 40)
    row, column = origin
    made = tile_at[(1,)](
        x, metile.empty((32,), mx.float32), 2, 40, row, column, SIZE=32, backend=backend
    )
    inside = [0 <= row < 2 and 0 <= column + i < 40 for i in range(32)]
    expected = [row * 40 + column + i + 1 if ok else -1 for i, ok in enumerate(inside)]
    assert made.tolist() == expected


@metile.kernel
def masked(x, y, n, EVERY: metile.constexpr, FILL: metile.constexpr):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    target.store(i, source.load(i, mask=i % 4 != 1, fill=FILL), mask=i % EVERY != 0)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 31, 32, 33, 63, 70])
def test_masks_bounds_and_fills_together(n: int, backend: str) -> None:
    """F52: exactly the elements of both masks change; those that no program stores are zero."""
    x = mx.arange(1, n + 1, dtype=mx.float32)
    made = masked[(metile.cdiv(n, 32),)](
        x, metile.empty((n,), mx.float32), n, EVERY=3, FILL=float("-inf"), backend=backend
    )
    loaded = [float("-inf") if i % 4 == 1 else i + 1 for i in range(n)]
    assert made.tolist() == [0 if i % 3 == 0 else loaded[i] for i in range(n)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_no_program_stores_is_zero(dtype: str, backend: str) -> None:
    """F27, SPEC K7: no poison, no rounding of wide integers; with one program of three."""
    for size in (70, 70_000):
        x = payload(dtype, (size,))
        expected = mx.concatenate([x[:32], mx.zeros((size - 32,), x.dtype)])
        # Memory that is used again, and holds ones.
        used = [mx.full((size,), 1, x.dtype) for _ in range(8)]
        mx.eval(expected, used)
        del used
        made = copy[(1,)](x, metile.empty((size,), x.dtype), size, backend=backend)
        assert same_bits(made, expected)


@metile.kernel
def counted(x, y, n):
    n = metile.load(x + 0)
    for start in metile.tile_range(0, n, 32):
        metile.store(y + start + metile.arange(0, 32), metile.full(32, 7, metile.i32))


@pytest.mark.parametrize("many", [0, 32])
def test_a_number_read_under_the_name_of_a_scalar_is_not_that_scalar(many: int) -> None:
    """F27: the loop runs as often as memory says, and the call's n proves nothing of it."""
    used = [mx.full((32,), 1, mx.int32) for _ in range(8)]
    mx.eval(used)
    del used
    out = metile.empty((32,), mx.int32)
    # The reference takes Python numbers as bounds.
    made = counted[1](mx.array([many], mx.int32), out, 32, backend="cpu")
    assert made.tolist() == [7 if many else 0] * 32


@metile.kernel
def never(x, y):
    i = metile.arange(0, 32)
    value = metile.tensor(x, shape=32).load(i)
    metile.tensor(y, shape=32, access="write").store(i, value, mask=i < 0)


def test_a_kernel_that_stores_nothing_at_all(backend: str) -> None:
    """SPEC K7: no pass leaves anything of it."""
    found = never[2](mx.ones(32), metile.empty(32, mx.float32), backend=backend)
    assert mx.array_equal(found, mx.zeros(32))


@metile.kernel
def partial(x, y, n, limit):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    old = target.load(i)
    target.store(i, metile.where(i % 2 == 0, source.load(i), old), mask=i < limit)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("limit", [0, 5, 40, 100])
def test_read_write_keeps_what_no_program_stores(dtype: str, limit: int, backend: str) -> None:
    """SPEC K7: the input's elements, bit for bit; the input itself is never changed (F36)."""
    x, y = payload(dtype, (70,), 1), payload(dtype, (70,), 2)
    before = mx.array(y)
    made = partial[(2,)](x, y, 70, limit, backend=backend)
    i = mx.arange(70)
    stored = (i < min(limit, 64)) & (i % 2 == 0)
    assert same_bits(made, mx.where(stored, x, y))
    assert same_bits(y, before)


@metile.kernel
def bump(y, n):
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    before = target.load((n - 1) - i)
    target.store(i, before + 1)


def test_loads_see_the_array_as_given(backend: str) -> None:
    """SPEC K7: programs read what others overwrite, and read it as it was; y stays intact (F36)."""
    y = mx.arange(96, dtype=mx.int32)
    later = bump[(3,)](y, 96, backend=backend)
    twice = bump[(3,)](later, 96, backend=backend)
    assert mx.array_equal(later, mx.arange(96)[::-1] + 1)
    assert mx.array_equal(twice, mx.arange(96) + 2)
    assert mx.array_equal(y, mx.arange(96))


def test_a_donated_input_is_not_shared_with_another_use(backend: str) -> None:
    """F36: x is used again after the kernel, in the same graph."""
    x = mx.arange(96, dtype=mx.int32) * 2
    first = bump[(3,)](x, 96, backend=backend)
    both = mx.stack([first, x])
    assert mx.array_equal(both[1], mx.arange(96) * 2)
    assert mx.array_equal(both[0], mx.arange(96)[::-1] * 2 + 1)


def test_an_output_argument_is_only_shape_and_dtype(backend: str) -> None:
    """SPEC K7: an array given for an output is neither read nor written."""
    x, given = mx.arange(40, dtype=mx.float32), mx.full((40,), 7.0)
    made = copy[(1,)](x, given, 40, backend=backend)
    assert made.tolist() == [*range(32), *[0] * 8]
    assert mx.array_equal(given, mx.full((40,), 7.0))


@metile.kernel
def strided(x, y, rows, pitch, BLOCK: metile.constexpr = 32):
    source = metile.tensor(x, shape=(rows, 5), strides=(pitch, 2), access="read")
    target = metile.tensor(y, shape=(5, rows), strides=(1, 5), access="write")
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    target.store((i % 5, i // 5), source.load((i // 5, i % 5)))


@pytest.mark.parametrize("pitch", [9, 12, 16])
def test_declared_strides_address_memory(pitch: int, backend: str) -> None:
    """SPEC K2, X8: strides in elements, of the array as given; gaps between rows stay unread."""
    rows = 11
    x = mx.arange(rows * pitch, dtype=mx.int32)
    made = strided[(2,)](x, metile.empty((rows, 5), mx.int32), rows, pitch, backend=backend)
    expected = mx.arange(rows)[:, None] * pitch + 2 * mx.arange(5)
    assert mx.array_equal(made, expected)


def test_declared_strides_of_zero_repeat_an_element(backend: str) -> None:
    @metile.kernel
    def spread(x, y, n):
        source = metile.tensor(x, shape=(n, 32), strides=(1, 0), access="read")
        target = metile.tensor(y, shape=(n, 32), access="write")
        row, i = metile.program_id(0), metile.arange(0, 32)
        target.store((row, i), source.load((row, i)))

    x = mx.arange(3, dtype=mx.int32)
    made = spread[(3,)](x, metile.empty((3, 32), mx.int32), 3, backend=backend)
    assert mx.array_equal(made, mx.broadcast_to(x[:, None], (3, 32)))


TRANSPOSED = metile.ThreadLayout((3, 4, 5, 0, 1, 2))


@metile.kernel
def transpose(x, y, n, given, LAYOUT: metile.constexpr = TRANSPOSED):
    source = metile.tensor(x, shape=(n, 8, 8), access="read")
    target = metile.tensor(y, shape=(n, 8, 8), access="write")
    batch, i = metile.program_id(0), metile.arange(0, 64)
    values = source.load((batch, i // 8, i % 8), mask=batch < given, fill=9)
    owned = metile.arange(0, 64, layout=LAYOUT)
    target.store((batch, owned % 8, owned // 8), metile.convert_layout(values, LAYOUT))


@pytest.mark.parametrize(("batches", "programs", "given"), [(3, 3, 3), (3, 5, 2), (3, 2, 3)])
def test_exchanges_of_threads_out_of_bounds(
    batches: int, programs: int, given: int, backend: str
) -> None:
    """SPEC C2: all threads take part in the exchange, whatever their masks say."""
    x = mx.random.normal((batches, 8, 8), key=mx.random.key(5))
    made = transpose[(programs,)](
        x, metile.empty(x.shape, x.dtype), batches, given, backend=backend
    )
    done = min(batches, programs)
    number = mx.arange(batches)[:, None, None]
    expected = mx.where(number < given, x.transpose(0, 2, 1), mx.array(9.0))
    assert mx.array_equal(made, mx.where(number < done, expected, mx.array(0.0)))


@metile.kernel
def two(x, a, b, n):
    source = metile.tensor(x, shape=(n,), access="read")
    first = metile.tensor(a, shape=(n,), access="write")
    second = metile.tensor(b, shape=(n,), access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = source.load(i)
    second.store(i, -value, mask=i < 3)
    first.store(i, value * 2)


def test_several_outputs_come_in_parameter_order(backend: str) -> None:
    """SPEC K7: whatever the order of the stores; one is proven, the other keeps its input."""
    x, b = mx.arange(32, dtype=mx.float32), mx.full((32,), 50.0)
    made = two[(1,)](x, metile.empty((32,), mx.float32), b, 32, backend=backend)
    assert isinstance(made, tuple)
    assert made[0].tolist() == [2 * i for i in range(32)]
    assert made[1].tolist() == [-0.0, -1, -2, *[50] * 29]


def fills(dispatch: metile.Dispatch) -> dict[str, str]:
    report = dispatch.execution_report
    return {c.output: "stored" if c.proven else c.fill for c in report.coverage}


@pytest.mark.parametrize(("programs", "zeroed"), [(2, True), (3, False)])
def test_zero_fill_only_where_something_may_be_unstored(
    programs: int, zeroed: bool, gpu: Any
) -> None:
    """SPEC K7, F27: a grid that provably stores everything asks MLX for no `init_value`."""
    x = payload("f32", (70,))
    out = metile.empty((70,), mx.float32)
    copy[(programs,)](x, out, 70, backend="metal")
    assert gpu.calls[-1].get("init_value") == (0 if zeroed else None)
    assert "init_value" in gpu.calls[-1] or not zeroed
    reported = fills(copy[(programs,)].prepare(x, out, 70, target="metal"))
    assert reported == {"y": "MLX's init_value=0" if zeroed else "stored"}


def test_written_masks_are_outputs_only_where_needed(gpu: Any) -> None:
    """SPEC K7: a read_write output that is wholly stored has no mask and no fill."""
    y = mx.arange(96, dtype=mx.int32)
    bump[(3,)](y, 96, backend="metal")
    assert gpu.calls[-1]["output_dtypes"] == [mx.int32]
    assert "init_value" not in gpu.calls[-1]
    bump[(2,)](y, 96, backend="metal")
    assert gpu.calls[-1]["output_dtypes"] == [mx.int32, mx.bool_]
    assert gpu.calls[-1]["init_value"] == 0


def test_registered_names_cover_how_mlx_passes_an_input(gpu: Any) -> None:
    """F02, F08: 7 and 8 elements have one text and two names, since their signatures differ."""

    @metile.kernel
    def halves(x, y, n):
        source = metile.tensor(x, shape=(n,), access="read")
        target = metile.tensor(y, shape=(8,), access="write")
        i = metile.arange(0, 32)
        target.store(i, source.load(i))

    for size in (0, 1, 7, 8, 40, 7):
        x = mx.zeros((size,), mx.float16)
        halves[(1,)](x, metile.empty((8,), mx.float16), size, backend="metal")
    made = [source for source in gpu.sources if source.name.startswith("halves")]
    assert len(made) == len({source.name for source in made}) == 2
    assert len({source.body for source in made}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_backends_agree_on_arithmetic_at_odd_sizes(dtype: str) -> None:
    """SPEC X5: one kernel, three backends, the same bits; 45 elements on two programs."""

    @metile.kernel
    def mix(x, w, y, n):
        a = metile.tensor(x, shape=(n,), access="read")
        b = metile.tensor(w, shape=(n,), access="read")
        c = metile.tensor(y, shape=(n,), access="write")
        i = metile.program_id(0) * 32 + metile.arange(0, 32)
        left, right = a.load(i), b.load(n - 1 - i)
        c.store(i, metile.where(left != right, left, right))

    x, w = payload(dtype, (45,), 3), payload(dtype, (45,), 4)
    made = [
        mix[(2,)](x, w, metile.empty((45,), x.dtype), 45, backend=backend) for backend in BACKENDS
    ]
    assert same_bits(made[0], made[1])
    assert same_bits(made[0], made[2])


def test_offsets_past_31_bits_are_64_bits_wide_in_the_text() -> None:
    """F21, SPEC X8: the index width follows the declared view of the call, not the tile."""

    @metile.kernel
    def far(x, y, rows, pitch):
        source = metile.tensor(x, shape=(rows, 32), strides=(pitch, 1), access="read")
        target = metile.tensor(y, shape=(rows, 32), access="write")
        row, i = metile.program_id(0), metile.arange(0, 32)
        target.store((row, i), source.load((row, i)))

    def prepared(rows: int, pitch: int) -> metile.Dispatch:
        # Broadcast: as many elements as the view needs, one of them in memory.
        x = mx.broadcast_to(mx.zeros((1,), mx.uint32), (rows, pitch))
        y = metile.empty((rows, 32), mx.uint32)
        return far[(rows,)].prepare(x, y, rows, pitch, target="metal")

    narrow, wide = prepared(2, 1 << 20), prepared(2049, 1 << 20)
    assert narrow.execution_report.index_bits == 32
    assert wide.execution_report.index_bits == 64
    text = wide._request(wide._values, METAL).source
    assert text is not None
    assert "ulong" in text.body or "long" in text.body
    short = narrow._request(narrow._values, METAL).source
    assert short is not None
    assert "long" not in short.body


@metile.kernel
def scaled_rows(x, w, y, rows, n):
    source = metile.tensor(x, shape=(rows, 64), access="read")
    weights = metile.tensor(w, shape=(n,), access="read")
    result = metile.tensor(y, shape=(rows, 64), access="write")
    row, column = metile.program_id(0), metile.arange(0, 64)
    value = source.load((row, column))
    result.store((row, column), value * weights.load(column, fill=1))


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("n", [0, 1, 31, 63, 64])
def test_a_short_weight_beside_whole_rows(backend: str, n: int) -> None:
    """One mask guards every store and another only a load: rows are stored all the same (F55)."""
    x = mx.random.normal((3, 64), key=mx.random.key(n))
    w = mx.random.normal((max(n, 1),), key=mx.random.key(n + 1))
    empty = metile.empty(x.shape, x.dtype)
    out = scaled_rows[4](x, w, empty, 3, n, backend=backend)
    whole = mx.concatenate([w[:n], mx.ones(64 - n)])
    assert mx.array_equal(out, x * whole)
