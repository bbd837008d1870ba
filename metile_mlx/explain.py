"""The execution report as text: what `Dispatch.explain()` returns (SPEC E)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from metile_mlx.report import ExecutionReport, LayoutConversion, Pipeline, RegisterReduction


def explain(report: ExecutionReport) -> str:
    """A page a person can read; every line restates a typed fact of the report."""
    lines = [
        f"kernel {report.kernel}",
        f"  backend {report.backend} (target {report.target}), "
        f"grid {_grid(report.grid)} programs" + _geometry(report),
    ]
    for title, rows in _sections(report):
        lines.append(f"{title}:" if rows else f"{title}: none")
        lines += _table(rows)
    passes = sum(t.seconds for t in report.timings if t.kind != "verifier")
    checks = sum(t.seconds for t in report.timings if t.kind == "verifier")
    lines.append(
        f"compile time: {passes * 1e3:.2f} ms in passes, {checks * 1e3:.2f} ms in verifiers"
    )
    return "\n".join(lines)


def _geometry(report: ExecutionReport) -> str:
    """Nothing for the reference, which has no threads."""
    if report.target == "none":
        return ""
    return f" x {report.threads} threads, {report.index_bits}-bit offsets, math {report.math_mode}"


def _grid(grid: Sequence[int]) -> str:
    return " x ".join(str(extent) for extent in grid)


Section = tuple[str, list[tuple[str, ...]]]


def _sections(report: ExecutionReport) -> Iterator[Section]:
    """Titles and rows; those that are seldom there only where they have rows."""
    yield from _ownership(report)
    yield from _threads(report)
    yield from _launch(report)


def _ownership(report: ExecutionReport) -> Iterator[Section]:
    """Who owns what, and how owners change."""
    yield (
        "value layouts",
        [
            (v.value, v.dtype, v.layout, "stated" if v.stated else "implied", v.where)
            for v in report.value_layouts
        ],
    )
    yield (
        "layout conversions",
        [
            (
                f"{c.value} -> {c.result}",
                c.dtype,
                c.mechanism,
                c.scratch or c.lane_rule or "no communication",
                f"{c.barriers} barriers",
                c.where,
            )
            for c in report.layout_conversions
        ],
    )
    if report.layout_optimizations:
        yield (
            "layout optimizations",
            [
                (
                    o.value,
                    o.kind,
                    o.replacement and f"use {o.replacement}",
                    f"{abs(o.barriers_removed)} barriers "
                    + ("more" if o.barriers_removed < 0 else "fewer"),
                    o.where,
                    o.proof,
                )
                for o in report.layout_optimizations
            ],
        )
    if any(c.cost is not None for c in report.layout_conversions):
        yield "conversion costs", [row for c in report.layout_conversions for row in _costs(c)]


def _threads(report: ExecutionReport) -> Iterator[Section]:
    """What threads share, and how they compute and move values together."""
    yield (
        "threadgroup memory",
        [(a.scratch, f"{a.elements} x {a.dtype}", f"{a.bytes} bytes") for a in report.allocations],
    )
    if report.pipelines:
        yield "software pipelines", [row for p in report.pipelines for row in _pipeline(p)]
    yield (
        "register reductions",
        [
            (
                f"{r.op} {r.dtype}" + (f" along axis {r.axis}" if r.axis is not None else ""),
                f"{r.registers} registers x {r.threads} threads",
                _reduced(r),
            )
            for r in report.register_reductions
        ],
    )
    for title, groups in (
        ("grouped loads", report.grouped_loads),
        ("grouped stores", report.grouped_stores),
    ):
        yield title, [(g.tensor, g.dtype, f"x{g.width}", g.where) for g in groups]


def _launch(report: ExecutionReport) -> Iterator[Section]:
    """What a launch writes, and what was checked of it."""
    yield (
        "outputs",
        [
            (c.output, "every element stored" if c.proven else c.fill, c.reason)
            for c in report.coverage
        ],
    )
    yield (
        "limits",
        [
            (
                limit.name,
                f"{limit.requested} of {limit.allowed}",
                "checked" if limit.checked else "not checked",
                limit.note,
            )
            for limit in report.limits
        ],
    )
    if report.bounds_checks_removed:
        yield "bounds checks proven redundant", [(str(report.bounds_checks_removed),)]
    if report.notes:
        yield "notes", [(note,) for note in report.notes]


def _pipeline(pipeline: Pipeline) -> Iterator[tuple[str, ...]]:
    """The loop, then its memory and its phases."""
    if pipeline.declined:
        yield pipeline.loop, "stays as it is", pipeline.declined
        return
    many = f"{pipeline.slots} slot" + "s" * (pipeline.slots > 1)
    each = f"{pipeline.barriers} barrier" + "s" * (pipeline.barriers > 1)
    yield pipeline.loop, many, f"{each} a step"
    for b in pipeline.buffers:
        turns = f"bank conflicts {b.store_conflicts} and {b.load_conflicts}"
        yield b.value, b.scratch, f"{pipeline.slots} x {b.elements} x {b.dtype}, {turns}"
    for phase in pipeline.phases:
        work = f"{phase.copies} copies, {phase.products} products"
        yield f"phase {phase.name}", work, f"barriers: {', '.join(phase.barriers)}"


def _costs(conversion: LayoutConversion) -> list[tuple[str, ...]]:
    """A row for each lowering of a conversion, the one taken first."""
    if conversion.cost is None:
        return []
    others = [each for each in conversion.candidates if each != conversion.cost]
    rows: list[tuple[str, ...]] = []
    for each in (conversion.cost, *others):
        parts = [f"{each.shuffles} shuffles"] * (each.shuffles > 0)
        parts += [f"{each.selects} selects"] * (each.selects > 0)
        if each.rounds:
            parts += [
                f"{each.stores} stores and {each.loads} loads in {each.rounds} rounds",
                f"{each.scratch_bytes} bytes",
                f"bank conflicts {each.write_conflicts} and {each.read_conflicts}",
            ]
        name = f"{conversion.value} -> {conversion.result}"
        reason = f"taken: {conversion.reason}" if each is conversion.cost else ""
        rows.append((name, each.mechanism, f"cost {each.total}", ", ".join(parts), reason))
    return rows


def _reduced(r: RegisterReduction) -> str:
    """How the parts of a reduction come together."""
    rows = "one simdgroup" if r.axis is None else "rows within a simdgroup"
    memory = r.scratch or f"{rows}: no scratch, no barrier"
    return f"{memory}, {r.shuffles} shuffles" if r.shuffles else memory


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
