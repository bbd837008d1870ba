"""Whether a grid provably stores every element of an output (SPEC K7).

A store covers its view when its index vectors, over the programs of the grid, take every value in
the view's box. That is decided for indices that are affine in the program ids,

    index_d = coefficient * program_id(axis) + part_d[lane]

with the part over the tile's lanes worked out exactly. All lanes of one program, but for those that
a mask leaves out in every program, then hit a set of index vectors; when that set holds a whole box
of e_0 x e_1 x ... neighbours, and e_d is the coefficient of the axis that drives dimension d,
neighbouring programs tile the dimension without a gap from the box's first index on.

A loop whose bounds the host knows is one more axis: its index is start + step * k for k = 0, 1, ...
and all its iterations are programs along it.

So a store covers some stretch of each dimension of its view, and the offsets of these are a region
of the output. An output is covered when the regions of its stores join to all of it
(analysis/regions.py): stores need share neither loops nor views.

Wrapping arithmetic is no hole: the index a program computes equals the affine value modulo 2**32
(analysis/affine_forms.py), and an index in [0, extent) is below 2**31, so whenever the affine value
is in there the computed one is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np

from metile_mlx.analysis.affine_forms import Form, Lanes, affine_forms
from metile_mlx.analysis.lane_masks import Held, lanes_held
from metile_mlx.analysis.regions import Region, joined
from metile_mlx.analysis.views import (
    REMEMBERED,
    HostExpr,
    View,
    host_number,
    view_of,
    with_grid,
)
from metile_mlx.ir.core import Block, Func, Op, Value, definitions, walk
from metile_mlx.ir.loops import For
from metile_mlx.ir.tile import Store, Tensor

Grid: TypeAlias = "tuple[int, int, int]"
AXES = "xyz"
# Per dimension: which grid axis moves its index and by how much per program, None where none does.
Drive: TypeAlias = "tuple[tuple[int, int] | None, ...]"
# What stands around a store, outermost first; and the loops of it by their axes.
Path: TypeAlias = "tuple[For | None, ...]"
Around: TypeAlias = "tuple[tuple[int, Trips], ...]"


@dataclass(frozen=True)
class Trips:
    """A loop around a store: where it starts and how often it runs."""

    start: HostExpr
    end: HostExpr
    step: int

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.start.names, *self.end.names)

    def first(self, known: Mapping[str, int]) -> int:
        return _wrapped(self.start, known)

    def count(self, known: Mapping[str, int]) -> int:
        return len(range(self.first(known), _wrapped(self.end, known), self.step))


def _wrapped(number: HostExpr, known: Mapping[str, int]) -> int:
    """The i32 a program computes: products wrap, and the host's do not."""
    return ((number.evaluate(known) + 2**31) & 0xFFFFFFFF) - 2**31


@dataclass(frozen=True)
class Box:
    """What each program of a group of stores covers: extents[d] from firsts[d] on.

    `axes[d]` is the grid axis that moves dimension d by extents[d], or the number of a loop + 3,
    None where every program covers it alike. `loops` are all loops around the stores, by that
    number.
    """

    axes: tuple[int | None, ...]
    extents: tuple[int, ...]
    firsts: tuple[int, ...]
    loops: Around = ()


@dataclass(frozen=True)
class OutputCoverage:
    """What is known of one written parameter before its grid is known.

    Attributes:
        param: the parameter's name.
        access: `write` or `read_write`.
        candidates: boxes of stores, each with its view; together they may prove the output.
        reasons: why other stores prove nothing, one text each.
    """

    param: str
    access: str
    candidates: tuple[tuple[View, Box], ...]
    reasons: tuple[str, ...]
    _gap: Callable[..., str] = field(init=False, repr=False, compare=False)
    _names: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {name for view, box in self.candidates for name in _names(view, box)}
        object.__setattr__(self, "_names", tuple(sorted(names)))
        object.__setattr__(self, "_gap", lru_cache(REMEMBERED)(self._find_gap))

    def proven(self, scalars: Mapping[str, int], grid: Grid, size: int) -> bool:
        """Whether every one of the array's `size` elements is stored by some program of `grid`.

        Args:
            scalars: the call's integer scalars; one given as an MLX array is left out.
            grid: programs along x, y, z.
            size: elements of the whole output array.

        Raises:
            LaunchError: an illegal extent or stride, as `View.geometry`.
        """
        return not self._gap(grid, size, *map(scalars.get, self._names))

    def explain(self, scalars: Mapping[str, int], grid: Grid, size: int) -> str:
        """The proof in one line, or everything that stands in its way (for the report)."""
        gap = self._gap(grid, size, *map(scalars.get, self._names))
        programs = " x ".join(map(str, grid))
        return gap or f"{programs} programs store all {size} elements of {self.param}"

    def _find_gap(self, grid: Grid, size: int, *values: int | None) -> str:
        """Why the output is not proven to be covered; empty when it is."""
        if size == 0:
            return ""
        given = {n: v for n, v in zip(self._names, values, strict=True) if v is not None}
        known = with_grid(given, grid)
        found = [_covered(view, box, known, grid, size) for view, box in self.candidates]
        regions = joined(region for _, region in found if region is not None)
        if any(region.is_all(size) for region in regions):
            return ""
        gaps = [gap for gap, _ in found if gap]
        # Empty text is a proof, so there has to be some.
        return "; ".join(dict.fromkeys([*gaps, *self.reasons])) or "its stores leave some out"


def _covered(
    view: View, box: Box, known: Mapping[str, int], grid: Grid, size: int
) -> tuple[str, Region | None]:
    """Why the stores of a box are not all of the output, and what they are of it."""
    missing = [name for name in _names(view, box) if name not in known]
    if missing:
        return f"the view depends on {missing[0]}, which is an MLX array in this call", None
    shape, strides = view.geometry(known)
    if 0 in grid:
        return "the grid is empty", None
    counts = {**dict(enumerate(grid)), **{axis: trips.count(known) for axis, trips in box.loops}}
    if 0 in counts.values():
        return "a loop around the store runs no iteration", None
    base, sides = 0, []
    gap = ""
    for dimension, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        first, end = _stretch(box, dimension, known, counts)
        gap = gap or _left_out(box.axes[dimension], counts, (first, end), extent, dimension)
        first, end = max(first, 0), min(end, extent)
        if first >= end:
            return gap or f"the view of shape {shape} holds nothing that is stored", None
        base += first * stride
        sides.append((stride, end - first))
    region = Region.of(base, sides)
    if not (gap or region.is_all(size)):
        gap = f"the view of shape {shape} and strides {strides} is not all of {size} elements"
    return gap, region


def _stretch(
    box: Box, dimension: int, known: Mapping[str, int], counts: Mapping[int, int]
) -> tuple[int, int]:
    """The indices [first, end) that all programs and iterations cover of a dimension."""
    axis, extent, first = box.axes[dimension], box.extents[dimension], box.firsts[dimension]
    if axis is None:
        return first, first + extent
    trips = dict(box.loops).get(axis)
    if trips is not None:
        first += extent // trips.step * trips.first(known)
    return first, first + extent * counts[axis]


def _left_out(
    axis: int | None,
    counts: Mapping[int, int],
    stretch: tuple[int, int],
    extent: int,
    dimension: int,
) -> str:
    first, end = stretch
    if first > 0:
        return f"the first {min(first, extent)} of {extent} along dimension {dimension} are missed"
    if end >= extent:
        return ""
    if axis is None:
        return f"each program covers {end} of {extent} along dimension {dimension}"
    what = f"programs along {AXES[axis]}" if axis < 3 else "iterations"
    return f"{counts[axis]} {what} cover {end} of {extent} along dimension {dimension}"


def _names(view: View, box: Box) -> tuple[str, ...]:
    """The numbers of a call that a proof needs."""
    return (*view.names, *(name for _, trips in box.loops for name in trips.names))


def coverage(func: Func) -> tuple[OutputCoverage, ...]:
    """One fact for each parameter that a kernel at Stage.TILE declares writable, in Python order.

    Raises:
        CompileError: a view the host can't work out, as `views`.
    """
    defined = definitions(func)
    params = frozenset(func.params)
    declared: dict[Value, dict[Value, Tensor]] = {}
    for op in walk(func.body):
        if isinstance(op, Tensor) and op.access != "read":
            declared.setdefault(op.param, {})[op.result] = op
    stores = list(_stores(func.body, ()))
    loops = [op for op in walk(func.body) if isinstance(op, For)]
    forms = affine_forms(func) if stores else {}
    found = []
    for param in func.params:
        tensors = declared.get(param)
        if tensors is None:
            continue
        groups: dict[tuple[View, Drive, Around], list[Lanes]] = {}
        reasons = []
        own = [(store, around) for store, around in stores if store.tensor in tensors]
        for store, around in own:
            trips = _trips(around, loops, defined, params)
            held = lanes_held(store.mask, defined, forms)
            drive = trips if isinstance(trips, str) else _drive(store, forms, dict(trips), held)
            if isinstance(trips, str) or isinstance(drive, str):
                reasons.append(f"the store at line {store.loc.line} {drive}")
            else:
                view = view_of(tensors[store.tensor], defined, params)
                groups.setdefault((view, drive[0], trips), []).append(drive[1])
        if not own:
            reasons.append(f"nothing is stored to {param.name}")
        access = next(iter(tensors.values())).access
        candidates = []
        for (view, steps, trips), parts in groups.items():
            box = _box(view, steps, np.concatenate(parts, axis=1), trips)
            if box is None:
                reasons.append(f"the indices stored to {param.name} do not fill a box")
            else:
                candidates.append((view, box))
        found.append(OutputCoverage(param.name, access, tuple(candidates), tuple(reasons)))
    return tuple(found)


def _stores(block: Block, around: tuple[For | None, ...]) -> Iterator[tuple[Store, Path]]:
    """All stores, with the loops around them; None stands for a branch."""
    for op in block.ops:
        if isinstance(op, Store):
            yield op, around
        for inner in op.blocks():
            yield from _stores(inner, (*around, op if isinstance(op, For) else None))


def _trips(
    around: Path,
    loops: Sequence[For],
    defined: Mapping[Value, Op],
    params: frozenset[Value],
) -> Around | str:
    """How often the loops around a store run, by their axes; or why that is not known."""
    found = []
    for loop in around:
        if loop is None:
            return "is under a condition"
        start, end, step = (
            host_number(value, defined, params) for value in (loop.start, loop.end, loop.step)
        )
        if start is None or end is None or step is None or step.names:
            return f"is in the loop of line {loop.loc.line}, whose bounds the host does not know"
        found.append((3 + loops.index(loop), Trips(start, end, step.factor)))
    return tuple(found)


def _drive(
    store: Store,
    forms: Mapping[Value, Form],
    trips: Mapping[int, Trips],
    held: Held | None,
) -> tuple[Drive, Lanes] | str:
    """How program ids move the indices, and program 0's index vectors, one a column."""
    if held is None:
        return "is masked"
    if not held.any():
        return "is masked off in all lanes"
    drive: list[tuple[int, int] | None] = []
    parts = [np.zeros(1, np.int64)]
    for dimension, index in enumerate(store.indices):
        form = forms[index]
        if isinstance(form, str):
            return f"has an index {dimension} that depends on {form}"
        moved = [(axis, step) for axis, step in enumerate(form.coefficients) if step]
        if len(moved) > 1:
            return f"has an index {dimension} that depends on several program ids or loops"
        if moved and moved[0][1] < 0:
            what = f"program_id({moved[0][0]})" if moved[0][0] < 3 else "the index of its loop"
            return f"has an index {dimension} that falls as {what} rises"
        if moved and moved[0][0] >= 3:
            axis, step = moved[0]
            moved = [(axis, step * trips[axis].step)]
        drive.append(moved[0] if moved else None)
        parts.append(form.part)
    axes = [step[0] for step in drive if step]
    if len(set(axes)) < len(axes):
        return "has one program id or loop in several indices"
    *vectors, there = np.broadcast_arrays(*parts, held)
    return tuple(drive), np.stack(vectors)[1:, there]


def _box(view: View, drive: Drive, vectors: Lanes, trips: Around) -> Box | None:
    """The box that the index vectors (one a column) fill; None when it has gaps.

    Where an axis moves a dimension the box is as long as its step, where none does it ends with the
    largest index. It starts at the least index that is not negative, or at the least of all.
    """
    least = [int(indices.min()) for indices in vectors]
    return _filled(view, drive, vectors, trips, [max(first, 0) for first in least]) or _filled(
        view, drive, vectors, trips, least
    )


def _filled(
    view: View, drive: Drive, vectors: Lanes, trips: Around, firsts: Sequence[int]
) -> Box | None:
    """That box, from these indices on."""
    extents = []
    for step, extent, indices, first in zip(drive, view.shape, vectors, firsts, strict=True):
        end = int(indices.max()) + 1
        if step is not None:
            extents.append(step[1])
        else:
            extents.append((end if extent.names else min(end, extent.factor)) - first)
    if min(extents, default=1) < 1 or prod(extents) > vectors.shape[1]:
        return None
    inside = np.ones(vectors.shape[1], np.bool_)
    place = np.zeros(vectors.shape[1], np.int64)
    for indices, first, covered in zip(vectors, firsts, extents, strict=True):
        inside &= (indices >= first) & (indices < first + covered)
        place = place * covered + indices - first
    if not np.bincount(place[inside], minlength=prod(extents)).all():
        return None
    axes = tuple(step[0] if step else None for step in drive)
    return Box(axes, tuple(extents), tuple(firsts), trips)
