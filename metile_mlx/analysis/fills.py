"""Loads whose left-out lanes would decide a maximum or minimum: they need a `fill` (SPEC K2).

A lane that is masked off or out of bounds holds the load's fill, which is 0 where none was given.
That is what a sum ignores, but no maximum does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from metile_mlx.analysis.affine_forms import Affine, Form, affine_forms
from metile_mlx.errors import CompileError
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind, CombineKind
from metile_mlx.ir.core import Func, Op, Value, definitions, walk
from metile_mlx.ir.lanes import LaneReduce, Shared, threads_of
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Dot


def check_fills(func: Func) -> None:
    """Refuse a maximum or minimum over a load without fill that may leave lanes out.

    A load is known to leave none out where it has no mask and each index lies within a constant
    extent (of what is data, by a constant mask or remainder), or is the program id along an axis of
    the grid that is the extent.

    Raises:
        CompileError: at the load.
    """
    extremes = [
        item
        for item in walk(func.body)
        if isinstance(item, tile.Reduce | LaneReduce) and item.kind is not CombineKind.SUM
    ]
    if not extremes:
        return
    made_by = definitions(func)
    for loop in (item for item in walk(func.body) if isinstance(item, For)):
        made_by.update(dict.fromkeys(loop.carried, loop))
    held: dict[Value, list[Value]] = {}
    for store in (item for item in walk(func.body) if isinstance(item, tile.Store)):
        held.setdefault(store.tensor, []).append(store.value)
    forms = affine_forms(func, threads_of(func))
    for item in extremes:
        for load in _loads(item.src, made_by, held):
            if load.fill is None and _leaves_out(load, made_by, forms):
                _refuse(item, load)


def _refuse(item: tile.Reduce | LaneReduce, load: tile.Load) -> None:
    # It may be a part of argmax, too.
    is_max = item.kind is CombineKind.MAX
    kind, best = ("maximum", "-math.inf") if is_max else ("minimum", "math.inf")
    raise CompileError(
        "[load] lanes that are masked off or out of bounds would be 0, and take part in the "
        f"{kind} of line {item.loc.line}",
        load.loc,
        f"say what they count as: load(..., fill=x), for floats fill={best} is ignored by a {kind}",
    )


def _loads(
    value: Value, made_by: Mapping[Value, Op], held: Mapping[Value, Iterable[Value]]
) -> Iterator[tile.Load]:
    """The loads whose elements go into `value`; a sum or product gives numbers of its own.

    `held`: what is stored to each tensor, since threadgroup memory hands it on.
    """
    seen: set[Value] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        item = made_by.get(value)
        if item is None or value in seen:
            continue
        seen.add(value)
        match item:
            case For():
                names = item.carried if value in item.carried else item.results
                if value in names:
                    pending += [part[names.index(value)] for part in (item.inits, item.yields)]
            case tile.Load():
                yield item
                if isinstance(made_by[item.tensor], Shared):
                    pending += held.get(item.tensor, ())
            case tile.Reduce(kind=CombineKind.SUM) | LaneReduce(kind=CombineKind.SUM):
                pass
            case Dot():
                pending.append(item.acc)
            case tile.If():
                at = item.results.index(value)
                pending += [block.ops[-1].operands()[at] for block in item.blocks()]
            case tile.Select():
                pending += [item.on_true, item.on_false]
            case _:
                pending += item.operands()


def _leaves_out(load: tile.Load, made_by: Mapping[Value, Op], forms: Mapping[Value, Form]) -> bool:
    view = made_by[load.tensor]
    if isinstance(view, Shared):
        sizes: tuple[Value | int, ...] = view.shape
    else:
        assert isinstance(view, tile.Tensor)
        sizes = view.shape
    return load.mask is not None or not all(
        _within(index, extent, made_by, forms)
        for index, extent in zip(load.indices, sizes, strict=True)
    )


def _within(
    index: Value, extent: Value | int, made_by: Mapping[Value, Op], forms: Mapping[Value, Form]
) -> bool:
    """Whether 0 <= index < extent for certain."""
    here = made_by.get(index)
    size = None if isinstance(extent, int) else made_by.get(extent)
    if isinstance(here, tile.ProgramId) and isinstance(size, tile.NumPrograms):
        return here.axis == size.axis
    known = size.value if isinstance(size, tile.Constant) else extent
    largest = _largest(index, made_by, forms)
    return isinstance(known, int) and largest is not None and largest < known


def _largest(index: Value, made_by: Mapping[Value, Op], forms: Mapping[Value, Form]) -> int | None:
    """An index that is never negative: what it is at most; None where that is not known."""
    form = forms.get(index)
    if isinstance(form, Affine) and form.is_fixed:
        return int(form.part.max()) if form.part.min() >= 0 else None
    match made_by.get(index):
        case tile.Splat(src=source) | tile.Reshape(src=source):
            return _largest(source, made_by, forms)
        case tile.Binary(kind=BinaryKind.AND | BinaryKind.MOD as kind, rhs=rhs):
            by = forms.get(rhs)
            number = int(by.part[0]) if isinstance(by, Affine) and by.is_number else 0
            return number - (kind is BinaryKind.MOD) if number > 0 else None
        case _:
            return None
