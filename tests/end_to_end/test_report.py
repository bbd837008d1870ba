"""The execution report of a dispatch and its text (SPEC E)."""

from __future__ import annotations

import json
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.compiler import STEPS

ACROSS = metile.ThreadLayout((3, 4, 5, 0, 1, 2))
LANES = metile.ThreadLayout((1, 0, 3, 2, 4, 5), xor_mask=5)
SAME = metile.ThreadLayout.identity(64)


@metile.kernel
def transpose8(x, y, n, LAYOUT: metile.constexpr):
    source = metile.tensor(x, shape=(n, 8, 8), access="read")
    target = metile.tensor(y, shape=(n, 8, 8), access="write")
    batch, i = metile.program_id(0), metile.arange(0, 64)
    values = source.load((batch, i // 8, i % 8))
    converted = metile.convert_layout(values, LAYOUT)
    owned = metile.arange(0, 64, layout=LAYOUT)
    target.store((batch, owned % 8, owned // 8), converted)


def prepared(
    layout: metile.ThreadLayout,
    dtype: mx.Dtype = mx.float32,
    grid: int = 5,
    target: str = "metal",
    **options: Any,
) -> metile.Dispatch:
    x = mx.zeros((5, 8, 8), dtype)
    out = metile.empty(x.shape, dtype)
    return transpose8[grid].prepare(x, out, 5, LAYOUT=layout, target=target, **options)


def line_of(text: str) -> str:
    """Where that text stands in the kernel, as reports name places."""
    read = transpose8.definition.source
    number = next(n for n, line in enumerate(read.lines, read.first) if text in line)
    return f"test_report.py:{number}"


def test_a_conversion_across_groups() -> None:
    """SPEC E, C1: mechanism, scratch, barriers, owners, place, allocation."""
    report = prepared(ACROSS).execution_report
    (conversion,) = report.layout_conversions
    assert conversion.value == "values"
    assert conversion.result == "converted"
    assert conversion.dtype == "f32"
    assert conversion.source == repr(SAME)
    assert conversion.destination == repr(ACROSS)
    assert conversion.mechanism == "threadgroup"
    assert (conversion.scratch, conversion.lane_rule, conversion.barriers) == (
        "scratch_f32",
        None,
        2,
    )
    assert conversion.where == line_of("metile.convert_layout")
    (allocation,) = report.allocations
    assert (allocation.scratch, allocation.dtype) == ("scratch_f32", "f32")
    assert (allocation.elements, allocation.bytes) == (64, 256)


MLX = {mx.bfloat16: "bf16", mx.bool_: "bool", mx.float16: "f16"}


@pytest.mark.parametrize(
    ("dtype", "wire", "size"),
    [(mx.bfloat16, "u16", 128), (mx.bool_, "u32", 256), (mx.float16, "f16", 128)],
)
def test_the_scratch_of_what_travels_as_another_dtype(
    dtype: mx.Dtype, wire: str, size: int
) -> None:
    """SPEC C3."""
    report = prepared(ACROSS, dtype).execution_report
    (conversion,) = report.layout_conversions
    assert MLX[dtype] == conversion.dtype
    assert [(a.dtype, a.bytes) for a in report.allocations] == [(wire, size)]


def test_a_conversion_within_groups() -> None:
    """SPEC E, C1: the exact source lane."""
    report = prepared(LANES).execution_report
    (conversion,) = report.layout_conversions
    assert conversion.mechanism == "shuffle"
    assert conversion.lane_rule == "lane = bits (1, 0, 3, 2, 4) of lane ^ 5"
    assert (conversion.scratch, conversion.barriers) == (None, 0)
    assert report.allocations == []
    # The rule, read as it says: element e of thread e moves to the thread that LANES names.
    for lane in range(32):
        bits = (1, 0, 3, 2, 4)
        source = sum((lane >> bit & 1) << place for place, bit in enumerate(bits)) ^ 5
        assert LANES.logical_index(lane) == source


def test_a_conversion_that_moves_nothing() -> None:
    report = prepared(SAME).execution_report
    (conversion,) = report.layout_conversions
    assert conversion.mechanism == "unchanged"
    assert (conversion.scratch, conversion.lane_rule, conversion.barriers) == (None, None, 0)
    assert report.allocations == []


def test_a_forced_exchange() -> None:
    """SPEC K8."""
    schedule = metile.Schedule(conversion="scratch")
    (conversion,) = prepared(LANES, schedule=schedule).execution_report.layout_conversions
    assert (conversion.mechanism, conversion.barriers) == ("threadgroup", 2)


def test_value_layouts_name_the_users_values() -> None:
    """SPEC E: names stay through the passes; stated and implied owners are told apart."""
    report = prepared(ACROSS).execution_report
    layouts = {fact.value: fact for fact in report.value_layouts}
    assert {"i", "values", "converted", "owned"} <= layouts.keys()
    assert layouts["i"].layout == layouts["values"].layout == repr(SAME)
    assert layouts["owned"].layout == layouts["converted"].layout == repr(ACROSS)
    assert [layouts[name].stated for name in ("i", "owned", "converted")] == [False, True, True]
    assert layouts["owned"].where == line_of("owned = ")
    assert layouts["values"].dtype == "f32"


def test_geometry_target_and_backend() -> None:
    dispatch = prepared(ACROSS, target="metal")
    report = dispatch.execution_report
    assert (report.kernel, report.backend, report.target) == ("transpose8", "metal", "metal")
    assert (report.grid, report.threads) == ((5, 1, 1), 64)
    assert (dispatch.grid, dispatch.threadgroup) == ((5, 1, 1), (64, 1, 1))
    assert (report.index_bits, report.math_mode) == (32, "safe")
    cpu = prepared(ACROSS, target="cpu").execution_report
    assert (cpu.backend, cpu.target, cpu.index_bits) == ("cpu", "cpu", 64)
    reference = prepared(ACROSS, target="reference").execution_report
    assert (reference.backend, reference.target) == ("reference", "none")
    assert reference.notes == ["reference: a graph of MLX operations; nothing was compiled"]


@metile.kernel
def there_and_back(x, y, n):
    source = metile.tensor(x, shape=(n, 64))
    target = metile.tensor(y, shape=(n, 64), access="write")
    row, i = metile.program_id(0), metile.arange(0, 64)
    there = metile.convert_layout(source.load((row, i)), ACROSS)
    back = metile.convert_layout(there, SAME)
    lanes = metile.convert_layout(back, LANES)
    three = metile.convert_layout(metile.full(64, 3, metile.f32), LANES)
    target.store((row, metile.arange(0, 64, layout=LANES)), lanes * three)


@pytest.mark.parametrize("backend", ["metal", "cpu", "reference"])
def test_conversions_that_move_nothing_new_are_dropped(backend: str) -> None:
    """SPEC S1, S3, E: what is left is one shuffle; each other one has its proof."""
    x = mx.random.normal((5, 64))
    out = metile.empty(x.shape, x.dtype)
    dispatch = there_and_back[(5,)].prepare(x, out, 5, target=backend)
    report = dispatch.execution_report
    left = [] if backend == "reference" else ["shuffle"]
    assert [fact.mechanism for fact in report.layout_conversions] == left
    assert report.allocations == []
    found = [(f.kind, f.value, f.barriers_removed) for f in report.layout_optimizations]
    assert found == [
        ("uniform", "three", 0),
        ("intermediate", "there", 2),
        ("inverse", "back", 2),
    ]
    assert "layout optimizations:" in dispatch.explain()
    assert mx.array_equal(there_and_back[(5,)](x, out, 5, backend="cpu"), x * 3)


def test_what_later_passes_report_is_empty() -> None:
    """SPEC E: the fields are there."""
    report = prepared(ACROSS).execution_report
    assert report.layout_optimizations == []
    assert report.register_reductions == []
    assert report.grouped_loads == report.grouped_stores == []
    assert report.pipelines == []


@pytest.mark.parametrize(("grid", "proven"), [(5, True), (7, True), (3, False)])
def test_coverage(grid: int, proven: bool) -> None:
    """SPEC K7, F27: proven by the grid, or how the rest is filled on each backend, and why."""
    fills = {"metal": "MLX's init_value=0", "cpu": "zero-filled first"}
    for target, fill in fills.items():
        (fact,) = prepared(ACROSS, grid=grid, target=target).execution_report.coverage
        assert (fact.output, fact.proven) == ("y", proven)
        assert fact.fill == ("" if proven else fill)
        assert fact.reason == (
            f"{grid} x 1 x 1 programs store all 320 elements of y"
            if proven
            else "3 programs along x cover 3 of 5 along dimension 0"
        )


@metile.kernel
def accumulate(x, y, n, limit):
    source = metile.tensor(x, shape=(n,), access="read")
    target = metile.tensor(y, shape=(n,), access="read_write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    target.store(i, target.load(i) + source.load(i), mask=i < limit)


def test_coverage_of_a_masked_read_write_output() -> None:
    """SPEC K7: the report says which way the rest keeps its values."""
    x = mx.zeros((40,))
    fills = {"metal": "merged through a written mask", "cpu": "copied from the input first"}
    for target, fill in fills.items():
        dispatch = accumulate[(2,)].prepare(x, x, 40, 7, target=target)
        (fact,) = dispatch.execution_report.coverage
        line = accumulate.definition.loc.line + 4
        assert (fact.proven, fact.fill) == (False, fill)
        assert fact.reason == f"the store at line {line} is masked"


def test_limits_say_what_was_not_checked() -> None:
    """SPEC X9: the pipeline's own limit is known on the device only."""
    limits = {limit.name: limit for limit in prepared(ACROSS).execution_report.limits}
    threads = limits["threads per threadgroup"]
    memory = limits["threadgroup memory, bytes"]
    buffers = limits["buffers"]
    assert (buffers.requested, buffers.allowed, buffers.checked) == (3, 31, True)
    pipeline = limits["maxTotalThreadsPerThreadgroup"]
    assert (threads.requested, threads.allowed, threads.checked) == (64, 1024, True)
    assert (memory.requested, memory.allowed, memory.checked) == (256, 32768, True)
    assert (pipeline.checked, pipeline.note) == (
        False,
        "the pipeline's own limit needs the Metal device",
    )
    cpu = prepared(ACROSS, target="cpu").execution_report.limits
    assert [limit.name for limit in cpu] == [
        "threads per threadgroup",
        "threadgroup memory, bytes",
    ]


def test_a_lazy_scalar_leaves_views_unchecked_and_says_so() -> None:
    """SPEC X10: offsets are then 64 bits wide."""
    x = mx.zeros((40,))
    dispatch = accumulate[(2,)].prepare(x, x, mx.array(40), 7, target="metal")
    report = dispatch.execution_report
    assert report.index_bits == 64
    assert report.notes == [
        f"{name}: its size is not checked, since a scalar it depends on is an MLX array"
        for name in ("x", "y")
    ]


def test_timings_cover_every_pass_and_verifier() -> None:
    timings = prepared(ACROSS).execution_report.timings
    assert [t.step for t in timings if t.kind == "frontend"] == ["translate"]
    assert [t.step for t in timings if t.kind == "emit"] == ["emit_msl"]
    steps = [t.step for t in timings if t.kind == "pass"]
    assert steps == [step.name for step in STEPS]
    verified = {t.step for t in timings if t.kind == "verifier"}
    assert verified == {"tile", "owned", "planned", "thread"}
    assert all(0 <= t.seconds < 10 for t in timings)


@pytest.mark.parametrize("target", ["metal", "cpu", "reference"])
@pytest.mark.parametrize("layout", [ACROSS, LANES, SAME], ids=repr)
def test_to_dict_is_plain_json(layout: metile.ThreadLayout, target: str) -> None:
    report = prepared(layout, target=target).execution_report
    plain = report.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["grid"] == [5, 1, 1]
    assert isinstance(report, metile.ExecutionReport)


def test_reports_of_two_dispatches_share_nothing() -> None:
    """One text, two grids: what one dispatch adds does not show in the other."""
    first, second = prepared(ACROSS, grid=5), prepared(ACROSS, grid=3)
    first.execution_report.notes.append("mine")
    assert second.execution_report.notes == []
    assert len(second.execution_report.limits) == len(first.execution_report.limits) == 4
    assert [r.execution_report.coverage[0].proven for r in (first, second)] == [True, False]


def test_explain_says_what_matters() -> None:
    text = prepared(ACROSS).explain()
    lines = text.splitlines()
    assert lines[:2] == [
        "kernel transpose8",
        "  backend metal (target metal), grid 5 x 1 x 1 programs x 64 threads, 32-bit offsets, "
        "math safe",
    ]
    where = line_of("metile.convert_layout")
    assert f"  values -> converted  f32  threadgroup  scratch_f32  2 barriers  {where}" in lines
    assert "  scratch_f32  64 x f32  256 bytes" in lines
    assert "grouped loads: none" in lines
    assert "  y  every element stored  5 x 1 x 1 programs store all 320 elements of y" in lines
    assert any(
        " ".join(line.split()) == "threadgroup memory, bytes 256 of 32768 checked" for line in lines
    )
    assert any("not checked" in line and "needs the Metal device" in line for line in lines)
    assert lines[-1].startswith("compile time: ")
    owned = next(line for line in lines if line.startswith("  owned "))
    assert owned.split()[1] == "i32"
    assert "stated" in owned


def test_explain_of_a_shuffle_gives_the_lane() -> None:
    where = line_of("metile.convert_layout")
    rule = "lane = bits (1, 0, 3, 2, 4) of lane ^ 5"
    lines = prepared(LANES).explain().splitlines()
    assert f"  values -> converted  f32  shuffle  {rule}  0 barriers  {where}" in lines
    assert "threadgroup memory: none" in lines
    same = prepared(SAME).explain().splitlines()
    assert f"  values -> converted  f32  unchanged  no communication  0 barriers  {where}" in same


def test_explain_of_the_reference_shows_no_compilation() -> None:
    lines = prepared(ACROSS, target="reference").explain().splitlines()
    assert lines[1] == "  backend reference (target none), grid 5 x 1 x 1 programs"
    assert "  reference: a graph of MLX operations; nothing was compiled" in lines
