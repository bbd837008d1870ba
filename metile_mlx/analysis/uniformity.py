"""Which values are proven to be the same in every thread of a threadgroup (SPEC C2).

A type says how a value is computed: once, or in every thread. Whether all threads find the same is
another question where barriers stand under it. Proven are constants, runtime scalars, program ids,
extents of the grid, and what arithmetic, branches and loops on proven values make of them. What is
read from memory is not, except for a runtime scalar that was given as an MLX array.
"""

from __future__ import annotations

from metile_mlx.ir import metal, tile
from metile_mlx.ir.core import Block, Effect, Func, Op, Value
from metile_mlx.ir.loops import Loop
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.types import ScalarType

_BRANCHES = (tile.If, metal.If)
_LOADS = (tile.Load, metal.Load)
_OWN = (metal.ThreadIndex, metal.Extract)


def proven_uniform(func: Func) -> frozenset[Value]:
    """The scalars of a kernel at any stage that all threads of a threadgroup agree on."""
    proof = _Proof(func)
    proof.block(func.body)
    return frozenset(proof.known)


class _Proof:
    def __init__(self, func: Func) -> None:
        self.known = {param for param in func.params if isinstance(param.type, ScalarType)}

    def block(self, block: Block) -> None:
        for item in block.ops:
            if isinstance(item, Loop):
                self._loop(item)
            elif isinstance(item, _BRANCHES):
                self._branch(item)
            elif isinstance(item, SoftwarePipeline):
                # Nothing that depends on what it carries decides anything.
                for inner in item.blocks():
                    self.block(inner)
            elif self._is_proven(item):
                self.known.update(item.results)

    def _is_proven(self, item: Op) -> bool:
        if isinstance(item, _LOADS):
            return self._is_given(item)
        if item.effect is not Effect.PURE or isinstance(item, _OWN):
            return False
        return all(
            isinstance(value.type, ScalarType) and value.type.uniform for value in item.results
        ) and self.known.issuperset(item.operands())

    def _is_given(self, item: tile.Load | metal.Load) -> bool:
        """A scalar that was given as an MLX array: every thread reads the same element."""
        at = (item.index,) if isinstance(item, metal.Load) else item.indices
        same = _is_uniform(item.result) and item.mask is None and self.known.issuperset(at)
        return item.given and same

    def _branch(self, item: tile.If | metal.If) -> None:
        for inner in item.blocks():
            self.block(inner)
        if item.condition not in self.known:
            return
        sides = [inner.ops[-1].operands() for inner in item.blocks()]
        for result, *parts in zip(item.results, *sides, strict=True):
            if self.known.issuperset(parts) and _is_uniform(result):
                self.known.add(result)

    def _loop(self, item: Loop) -> None:
        """What is carried is taken for proven, until an iteration shows otherwise."""
        if not self.known.issuperset((item.start, item.end, item.step)):
            self.block(item.body)
            return
        outer = set(self.known)
        held = {
            position
            for position, init in enumerate(item.inits)
            if init in outer and _is_uniform(item.carried[position])
        }
        while True:
            self.known = {*outer, item.index, *(item.carried[position] for position in held)}
            self.block(item.body)
            lost = {position for position in held if item.yields[position] not in self.known}
            if not lost:
                break
            held -= lost
        self.known.update(item.results[position] for position in held)


def _is_uniform(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.uniform
