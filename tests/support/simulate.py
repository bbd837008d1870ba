"""The metal ops' meaning: a Stage.THREAD kernel executed on NumPy, one axis of threads.

One threadgroup at a time; a value is an array of one element (uniform) or of one per thread. What a
device would do without a word raises `SimulationError` here: unordered conflicting accesses to
threadgroup memory, reads of what nobody wrote, accesses outside an array, barriers and shuffles
that not all threads reach, a `nowrap` that wraps, a division by 0 or -1, a value typed uniform that
is not, and two threads of a launch storing one element. Numbers are those of arithmetic.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from metile_mlx import dtypes
from metile_mlx.ir import matrix, metal
from metile_mlx.ir.arith import BinaryKind, CombineKind, element
from metile_mlx.ir.core import Block, Func, Op, Value
from metile_mlx.ir.lanes import SharedAlloc, ThreadLaneReduce, ThreadLaneShuffle, ThreadSync
from metile_mlx.ir.loops import ThreadFor
from metile_mlx.ir.stated import AxisReduction
from metile_mlx.ir.types import PointerType, ScalarType
from metile_mlx.target import SIMD_WIDTH
from tests.support.arithmetic import (
    NUMPY,
    Array,
    binary,
    cast,
    compare,
    from_f32,
    literal,
    to_f32,
    unary,
    widen,
)
from tests.support.memory import NOBODY, Output, Scratch, SimulationError, poisoned

COMBINE = {
    CombineKind.SUM: BinaryKind.ADD,
    CombineKind.MAX: BinaryKind.MAXIMUM,
    CombineKind.MIN: BinaryKind.MINIMUM,
}

Observer = Callable[[Op, tuple[Array, ...]], None]


class Group:
    """One threadgroup while it runs."""

    def __init__(self, func: Func, position: tuple[int, ...], grid: tuple[int, ...]) -> None:
        self.func = func
        self.position = position
        self.grid = grid
        self.threads = np.arange(func.threads, dtype=np.int64)
        self.active = np.ones(func.threads, bool)
        self.values: dict[Value, Array] = {}
        self.inputs: dict[Value, Array] = {}
        self.outputs: dict[Value, Output] = {}
        self.scratch: dict[Value, Scratch] = {}
        self.observe: Observer | None = None

    def run(self, block: Block) -> tuple[Array, ...]:
        """Execute a block; what its yield hands over."""
        for item in block.ops:
            if isinstance(item, metal.Yield):
                return tuple(self.values[value] for value in item.values)
            found = STEPS[type(item)](self, item)
            for value, array in zip(item.results, found, strict=True):
                self.values[value] = self._checked(value, array, item)
            if self.observe is not None:
                self.observe(item, tuple(self.values[v] for v in item.results if v in self.values))
        return ()

    def _checked(self, value: Value, array: Array, item: Op) -> Array:
        if isinstance(value.type, ScalarType):
            if array.dtype != NUMPY[value.type.dtype]:
                raise SimulationError(f"computed {array.dtype} for a {value.type}", item)
            if value.type.uniform and array.size != 1:
                raise SimulationError("typed uniform, computed per thread", item)
        return array

    def spread(self, array: Array) -> Array:
        """One element per thread."""
        return np.broadcast_to(array, self.threads.shape)

    def together(self, item: Op) -> None:
        """Raise unless every thread is here."""
        if not self.active.all():
            raise SimulationError("not every thread of the threadgroup reaches it", item)

    def lanes(self, mask: Value | None) -> Array:
        """The threads that take part in an access."""
        if mask is None:
            return self.active
        return self.active & self.spread(self.values[mask])


def run(
    func: Func,
    arrays: Mapping[str, Array],
    scalars: Mapping[str, int | float | bool],
    grid: Sequence[int],
    observe: Observer | None = None,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Execute a Stage.THREAD kernel over a grid of threadgroups.

    Args:
        func: the kernel.
        arrays: by parameter: the contents of inputs, and for outputs an array of the shape and
            dtype to produce. bf16 arrays are uint16 bits. `<param>_out` and `<param>_written` have
            the shape of `<param>` unless given.
        scalars: by parameter.
        grid: threadgroups along up to three axes.
        observe: called after each op with its results.

    Returns:
        outputs and, for each, which elements were stored. An element nobody stored has bytes 0xA5,
        a bool one is False.

    Raises:
        SimulationError: see the module docstring.
    """
    extents = (*grid, 1, 1)[:3]
    inputs: dict[Value, Array] = {}
    outputs: dict[Value, Output] = {}
    for param in func.params:
        if isinstance(param.type, PointerType):
            given = _array(param, arrays)
            if param.type.writable:
                outputs[param] = Output(poisoned(given.size, param.type.dtype))
            else:
                inputs[param] = given
    with np.errstate(all="ignore"):
        for z, y, x in itertools.product(*(range(extent) for extent in reversed(extents))):
            group = Group(func, (x, y, z), extents)
            group.inputs, group.outputs, group.observe = inputs, outputs, observe
            for param in func.params:
                if isinstance(param.type, ScalarType):
                    group.values[param] = literal(scalars[param.name], param.type.dtype)
            group.run(func.body)
    results = {value.name: out for value, out in outputs.items()}
    shapes = {value.name: _given(value, arrays).shape for value in outputs}
    return (
        {name: out.data.reshape(shapes[name]) for name, out in results.items()},
        {name: (out.owner != NOBODY).reshape(shapes[name]) for name, out in results.items()},
    )


def _given(param: Value, arrays: Mapping[str, Array]) -> Array:
    for suffix in ("", "_out", "_written"):
        name = param.name.removesuffix(suffix) if suffix else param.name
        if name in arrays:
            return np.asarray(arrays[name])
    raise KeyError(param.name)


def _array(param: Value, arrays: Mapping[str, Array]) -> Array:
    assert isinstance(param.type, PointerType)
    given = _given(param, arrays)
    if param.name in arrays and given.dtype != NUMPY[param.type.dtype]:
        raise TypeError(f"{param.name} holds {param.type.dtype}, got {given.dtype}")
    return given.reshape(-1)


def _constant(group: Group, item: metal.Constant) -> tuple[Array, ...]:
    return (literal(item.value, item.dtype),)


def _thread_index(group: Group, item: metal.ThreadIndex) -> tuple[Array, ...]:
    return (group.threads.astype(np.uint32),)


def _program_id(group: Group, item: metal.ProgramId) -> tuple[Array, ...]:
    return (np.array([group.position[item.axis]], np.int32),)


def _num_programs(group: Group, item: metal.NumPrograms) -> tuple[Array, ...]:
    return (np.array([group.grid[item.axis]], np.int32),)


def _unary(group: Group, item: metal.Unary) -> tuple[Array, ...]:
    return (unary(item.kind, group.values[item.src], element(item.src)),)


def _binary(group: Group, item: metal.Binary) -> tuple[Array, ...]:
    dtype, a, b = element(item.lhs), group.values[item.lhs], group.values[item.rhs]
    if dtype.is_integer and item.kind in (BinaryKind.DIV, BinaryKind.REM):
        illegal = group.spread((b == 0) | ((b == -1) if dtype.is_signed else False))
        if (illegal & group.active).any():
            raise SimulationError("the divisor is 0 or -1", item)
    result = binary(item.kind, a, b, dtype)
    if item.nowrap and not np.array_equal(
        binary(item.kind, widen(a), widen(b), dtypes.i64), result
    ):
        raise SimulationError("nowrap, but it wraps", item)
    return (result,)


def _compare(group: Group, item: metal.Compare) -> tuple[Array, ...]:
    dtype, a, b = element(item.lhs), group.values[item.lhs], group.values[item.rhs]
    return (compare(item.kind, a, b, dtype),)


def _select(group: Group, item: metal.Select) -> tuple[Array, ...]:
    condition, on_true, on_false = (group.values[v] for v in item.operands())
    return (np.where(condition, on_true, on_false),)


def _cast(group: Group, item: metal.Cast) -> tuple[Array, ...]:
    return (cast(group.values[item.src], element(item.src), item.dtype),)


def _bitcast(group: Group, item: metal.Bitcast) -> tuple[Array, ...]:
    return (group.values[item.src].view(NUMPY[item.dtype]),)


def _fma(group: Group, item: metal.Fma) -> tuple[Array, ...]:
    # In f64 the product is exact; the sum may be off in the last bit where f64 rounds onto a tie.
    dtype = element(item.a)
    a, b, c = (to_f32(group.values[v], dtype).astype(np.float64) for v in (item.a, item.b, item.c))
    return (from_f32((a * b + c).astype(np.float32), dtype),)


def _load(group: Group, item: metal.Load) -> tuple[Array, ...]:
    data, index = group.inputs[item.buffer], group.values[item.index]
    lanes = group.lanes(item.mask)
    at = _in_array(group, index, lanes, data.size, item)
    if item.mask is None or item.fill is None:
        fill = np.zeros(1, data.dtype)
    else:
        fill = group.values[item.fill]
    if item.result.type == ScalarType(element(item.result)):
        # Uniform address, mask and fill: all active lanes agree.
        return (data[at[lanes][:1]] if lanes.any() else fill,)
    result = np.array(group.spread(fill))
    result[lanes] = data[at[lanes]]
    return (result,)


def _store(group: Group, item: metal.Store) -> tuple[Array, ...]:
    out, index = group.outputs[item.buffer], group.values[item.index]
    lanes = group.lanes(item.mask)
    at = _in_array(group, index, lanes, out.data.size, item)[lanes]
    value = group.spread(group.values[item.value])[lanes]
    out.store(at, value, _launch_thread(group)[lanes], item)
    return ()


def _print(group: Group, item: metal.Print) -> tuple[Array, ...]:
    """Changes nothing that anyone reads."""
    return ()


def _load_group(group: Group, item: metal.LoadGroup) -> tuple[Array, ...]:
    data = group.inputs[item.buffer]
    together, first = _together(group, item)
    lanes = []
    for lane, (index, mask, fill) in enumerate(item.parts()):
        active = group.lanes(mask)
        # The scalar path takes each index as it is; the vector lies behind the first.
        at = _in_array(group, group.values[index], active, data.size, item)
        at = np.where(together, first + lane, at)
        other = np.zeros(1, data.dtype) if fill is None else group.values[fill]
        lanes.append(np.where(active, data[np.where(active, at, 0)], other))
    width = metal.GROUP_WIDTH
    return tuple(np.stack(lanes[k : k + width], axis=1) for k in range(0, len(lanes), width))


def _store_group(group: Group, item: metal.StoreGroup) -> tuple[Array, ...]:
    out = group.outputs[item.buffer]
    together, first = _together(group, item)
    for lane, (index, value, mask) in enumerate(item.parts()):
        active = group.lanes(mask)
        at = _in_array(group, group.values[index], active, out.data.size, item)
        at = np.where(together, first + lane, at)[active]
        stored = group.spread(group.values[value])[active]
        out.store(at, stored, _launch_thread(group)[active], item)
    return ()


def _together(group: Group, item: metal.LoadGroup | metal.StoreGroup) -> tuple[Array, Array]:
    """The threads that access vectors, and where these start."""
    everywhere = np.logical_and.reduce([group.lanes(mask) for mask in item.masks])
    indices = [group.spread(group.values[index]).astype(np.int64) for index in item.indices]
    follows = np.logical_and.reduce([at == indices[0] + lane for lane, at in enumerate(indices)])
    if not item.checked and (everywhere & ~follows).any():
        raise SimulationError("indices that nobody compares are not consecutive", item)
    return everywhere & follows, indices[0]


def _extract(group: Group, item: metal.Extract) -> tuple[Array, ...]:
    return (group.values[item.vector][:, item.lane],)


def _launch_thread(group: Group) -> Array:
    """A number of each thread that no other thread of the launch has."""
    (x, y, z), (width, height, _) = group.position, group.grid
    return group.threads + ((z * height + y) * width + x) * group.func.threads


def _in_array(group: Group, index: Array, lanes: Array, size: int, item: Op) -> Array:
    spread = group.spread(index)
    outside = lanes & (spread >= size)
    if outside.any():
        thread = int(np.argmax(outside))
        raise SimulationError(f"thread {thread} accesses {spread[thread]} of {size} elements", item)
    return np.where(lanes, spread, 0).astype(np.int64)


def _alloc(group: Group, item: metal.ThreadgroupAlloc) -> tuple[Array, ...]:
    group.scratch[item.result] = Scratch(poisoned(item.elements, item.dtype))
    return (np.zeros(1),)


def _threadgroup_store(group: Group, item: metal.ThreadgroupStore) -> tuple[Array, ...]:
    memory, lanes = group.scratch[item.buffer], group.lanes(item.mask)
    at = _in_array(group, group.values[item.index], lanes, memory.data.size, item)[lanes]
    value = group.spread(group.values[item.value])[lanes]
    memory.store(at, value, group.threads[lanes], item)
    return ()


def _threadgroup_load(group: Group, item: metal.ThreadgroupLoad) -> tuple[Array, ...]:
    memory, lanes = group.scratch[item.buffer], group.lanes(item.mask)
    spread = _in_array(group, group.values[item.index], lanes, memory.data.size, item)
    memory.load(spread[lanes], group.threads[lanes], item)
    fill = memory.data[:1] if item.fill is None else group.values[item.fill]
    return (np.where(lanes, memory.data[spread], fill),)


def _barrier(group: Group, item: metal.Barrier) -> tuple[Array, ...]:
    group.together(item)
    for memory in group.scratch.values():
        memory.order()
    return ()


def _shuffle(group: Group, item: metal.Shuffle) -> tuple[Array, ...]:
    group.together(item)
    lane = group.spread(group.values[item.lane]).astype(np.int64)
    if (lane >= SIMD_WIDTH).any():
        raise SimulationError(f"lane {lane.max()} of {SIMD_WIDTH}", item)
    source = group.threads // SIMD_WIDTH * SIMD_WIDTH + lane
    return (group.spread(group.values[item.src])[source],)


def _simd_reduce(group: Group, item: metal.SimdReduce) -> tuple[Array, ...]:
    group.together(item)
    lanes = group.spread(group.values[item.src]).reshape(-1, SIMD_WIDTH)
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = binary(COMBINE[item.kind], lanes[:, :half], lanes[:, half:], element(item.src))
    if item.uniform and np.unique(lanes.view(np.uint32)).size != 1:
        raise SimulationError("typed uniform, but simdgroups differ", item)
    return (lanes[0] if item.uniform else np.repeat(lanes.reshape(-1), SIMD_WIDTH),)


def _axis_reduction(group: Group, item: AxisReduction) -> tuple[Array, ...]:
    """What is stated has to hold: exactly, but for the order in which floats are added."""
    group.together(item)
    owned = item.layout.map.apply(np.arange(item.layout.size))
    sources, totals = (
        np.concatenate([group.spread(group.values[value]) for value in values])
        for values in (item.sources, item.totals)
    )
    tile = np.empty_like(sources)
    tile[owned] = sources
    rows = tile.reshape(item.shape)
    ufunc = {CombineKind.SUM: np.add, CombineKind.MAX: np.maximum, CombineKind.MIN: np.minimum}
    wide = rows.astype(np.float64) if rows.dtype == np.float32 else rows
    found = ufunc[item.kind].reduce(wide, axis=item.axis, keepdims=True, dtype=wide.dtype)
    expected = np.broadcast_to(found, item.shape).reshape(-1)[owned]
    if item.kind is CombineKind.SUM and wide.dtype == np.float64:
        sizes = np.abs(wide).sum(axis=item.axis, keepdims=True)
        allowed = np.broadcast_to(sizes, item.shape).reshape(-1)[owned] * 1e-5
        right = ~(np.abs(totals - expected) > allowed)
    else:
        right = (totals == expected) | ((totals != totals) & (expected != expected))
    if not right.all():
        slot = int(np.argmin(right))
        raise SimulationError(f"slot {slot} holds {totals[slot]}, expected {expected[slot]}", item)
    return ()


def _if(group: Group, item: metal.If) -> tuple[Array, ...]:
    condition, before = group.spread(group.values[item.condition]), group.active
    taken: list[tuple[Array, tuple[Array, ...]]] = []
    for block, lanes in ((item.then, before & condition), (item.otherwise, before & ~condition)):
        if lanes.any():
            group.active = lanes
            taken.append((lanes, group.run(block)))
    group.active = before
    if len(taken) == 1:
        return taken[0][1]
    (lanes, then), (_, otherwise) = taken
    return tuple(np.where(lanes, a, b) for a, b in zip(then, otherwise, strict=True))


def _for(group: Group, item: ThreadFor) -> tuple[Array, ...]:
    start, end, step = (int(group.values[v][0]) for v in (item.start, item.end, item.step))
    if step < 1 and start < end:
        raise SimulationError(f"the step is {step}", item)
    carried = tuple(group.values[value] for value in item.inits)
    for index in range(start, end, max(step, 1)):
        group.values[item.index] = np.array([index], np.int32)
        for arg, array in zip(item.carried, carried, strict=True):
            group.values[arg] = group._checked(arg, array, item)
        if group.observe is not None:
            group.observe(item, (group.values[item.index],))
        carried = group.run(item.body)
    return carried


def _yield(group: Group, item: metal.Yield) -> tuple[Array, ...]:
    raise SimulationError("a yield outside a branch", item)


def _fragment_multiply(group: Group, item: matrix.FragmentMultiply) -> tuple[Array, ...]:
    """Lane l has row l/16*4 + l/2%4, columns l/8%2*4 + l%2*2 and the next."""
    group.together(item)
    lane = np.arange(SIMD_WIDTH)
    row, column = lane // 16 * 4 + lane // 2 % 4, lane // 8 % 2 * 4 + lane % 2 * 2

    def matrices(pair: tuple[Value, Value]) -> Array:
        found = np.zeros((len(group.threads) // SIMD_WIDTH, 8, 8), np.float32)
        for at, value in enumerate(pair):
            spread = group.spread(to_f32(group.values[value], element(value)))
            found[:, row, column + at] = spread.reshape(-1, SIMD_WIDTH)
        return found

    a, b, total = matrices(item.a), matrices(item.b), matrices(item.acc)
    for k in range(8):
        total = total + a[:, :, k : k + 1] * b[:, k : k + 1]
    return tuple(total[:, row, column + at].reshape(-1) for at in range(2))


def _block_multiply(group: Group, item: matrix.BlockMultiply) -> tuple[Array, ...]:
    group.together(item)
    rows, columns, depth = item.shape

    def whole(values: tuple[Value, ...]) -> Array:
        found = [group.spread(to_f32(group.values[v], element(v))) for v in values]
        return np.concatenate(found)

    a, b = whole(item.a).reshape(rows, depth), whole(item.b).reshape(depth, columns)
    total = whole(item.acc).reshape(rows, columns)
    for k in range(depth):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return tuple(total.reshape(len(item.acc), -1))


STEPS: dict[type[Op], Callable[[Group, Any], tuple[Array, ...]]] = {
    metal.Constant: _constant,
    metal.ThreadIndex: _thread_index,
    metal.ProgramId: _program_id,
    metal.NumPrograms: _num_programs,
    metal.Unary: _unary,
    metal.Binary: _binary,
    metal.Compare: _compare,
    metal.Select: _select,
    metal.Cast: _cast,
    metal.Bitcast: _bitcast,
    metal.Fma: _fma,
    metal.Load: _load,
    metal.Store: _store,
    metal.Print: _print,
    metal.LoadGroup: _load_group,
    metal.Extract: _extract,
    metal.StoreGroup: _store_group,
    metal.ThreadgroupAlloc: _alloc,
    metal.ThreadgroupStore: _threadgroup_store,
    metal.ThreadgroupLoad: _threadgroup_load,
    metal.Barrier: _barrier,
    metal.Shuffle: _shuffle,
    metal.SimdReduce: _simd_reduce,
    AxisReduction: _axis_reduction,
    metal.If: _if,
    metal.Yield: _yield,
    ThreadFor: _for,
    matrix.FragmentMultiply: _fragment_multiply,
    matrix.BlockMultiply: _block_multiply,
    ThreadLaneReduce: _simd_reduce,
    ThreadLaneShuffle: _shuffle,
    SharedAlloc: _alloc,
    ThreadSync: _barrier,
}
