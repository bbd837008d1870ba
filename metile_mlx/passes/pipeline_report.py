"""What the report says of pipelines."""

from __future__ import annotations

from collections.abc import Iterable

from metile_mlx.errors import Loc
from metile_mlx.ir.core import Block, Op, Value
from metile_mlx.ir.matrix import Dot
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.ir.planned import Barrier, ScratchLoad, ScratchStore
from metile_mlx.layout.banks import conflicts
from metile_mlx.report import Pipeline, PipelineBuffer, PipelinePhase, place


def declined(loc: Loc, reason: str) -> Pipeline:
    """A loop that stays as it is."""
    return Pipeline(place(loc), 0, 0, declined=reason)


def described(item: SoftwarePipeline) -> Pipeline:
    """A pipeline as it stands in the program."""
    phases = [_phase(name, block) for name, block in item.phases.items() if len(block.ops) > 1]
    steady = next(phase for phase in phases if phase.name == "steady")
    buffers = [_buffer(item, memory, position) for position, memory in enumerate(item.storage)]
    return Pipeline(place(item.loc), item.slots, len(steady.barriers), buffers, phases)


def _phase(name: str, block: Block) -> PipelinePhase:
    return PipelinePhase(
        name,
        sum(isinstance(op, ScratchStore) for op in block.ops),
        sum(isinstance(op, Dot) for op in block.ops),
        [op.role for op in block.ops if isinstance(op, Barrier)],
    )


def _buffer(item: SoftwarePipeline, memory: Value, position: int) -> PipelineBuffer:
    buffer = item.buffers[position]
    stores = [op for op in item.steady.ops if isinstance(op, ScratchStore)]
    loads = [op for op in item.steady.ops if isinstance(op, ScratchLoad)]
    (stored,) = (op.value for op in stores if op.buffer is memory)
    return PipelineBuffer(
        stored.name.removesuffix("_wire"),
        str(buffer.dtype),
        buffer.elements,
        buffer.elements * buffer.dtype.bytes * item.slots,
        memory.name,
        _turns(stores, memory),
        _turns(loads, memory),
    )


def _turns(accesses: Iterable[Op], memory: Value) -> int:
    """Those of the worst access."""
    return max(
        conflicts(op.slots, op.buffer.type.dtype.bytes)
        for op in accesses
        if isinstance(op, ScratchStore | ScratchLoad) and op.buffer is memory
    )
