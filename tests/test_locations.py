"""Every op belongs to a line of the user's, through every pass (DESIGN 1, 3; SPEC D)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from metile_mlx.compiler import STEPS
from metile_mlx.context import Context
from metile_mlx.errors import Loc
from metile_mlx.ir import matrix
from metile_mlx.ir.core import Effect, Func, Op, walk
from metile_mlx.target import METAL
from metile_mlx.verify.structure import LEGAL
from tests.support import samples
from tests.support.samples import SAMPLES, Sample


def stages(sample: Sample, bits: int) -> Iterator[tuple[str, Func]]:
    """The program as translated and after each pass."""
    func = sample.func()
    ctx = Context(METAL, index_bits=bits, masked_outputs=sample.masked)
    yield "translate", func
    for step in STEPS:
        func = step.run(func, ctx)
        yield step.name, func


def is_of_the_user(loc: Loc, sample: Sample) -> bool:
    """Whether it is a line of the kernel, or of the inline function it may call."""
    sources = (sample.kernel.definition.source, samples.scaled.definition.source)
    return any(
        loc.file == source.file
        and loc.line in range(source.first, source.first + len(source.lines))
        for source in sources
    )


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("name", SAMPLES)
def test_every_op_and_value_has_a_line_after_every_pass(name: str, bits: int) -> None:
    sample = SAMPLES[name]
    for step, func in stages(sample, bits):
        assert is_of_the_user(func.loc, sample), step
        lost = [item for item in walk(func.body) if not is_of_the_user(item.loc, sample)]
        assert lost == [], f"{step} lost the place of {lost[0].opcode}"
        values = [*func.params, *(value for item in walk(func.body) for value in item.results)]
        nowhere = [value for value in values if not is_of_the_user(value.loc, sample)]
        assert nowhere == [], f"{step} lost the place of {nowhere[0]}"


def effects(func: Func, *opcodes: str) -> list[int]:
    """Lines of the ops with these last words in their opcodes, sorted."""
    return sorted(
        item.loc.line for item in walk(func.body) if item.opcode.partition(".")[2] in opcodes
    )


# Programs with threadgroup memory of the user's own.
LANES = ("lanes", "passed on", "idle loop")


@pytest.mark.parametrize("name", SAMPLES)
def test_memory_keeps_its_own_line(name: str) -> None:
    """A pass may move, split or group an access; it stays the user's access."""
    sample = SAMPLES[name]
    everything = dict(stages(sample, 32))
    first, last = everything["translate"], list(everything.values())[-1]
    loads, stores = (
        effects(last, kind, f"{kind}_group", *shared)
        for kind, shared in (
            # Threadgroup memory that the user has declared; elsewhere it is a conversion's.
            ("load", ("threadgroup_load",) * (name in LANES)),
            ("store", ("threadgroup_store",) * (name in LANES)),
        )
    )
    assert set(loads) == set(effects(first, "load"))
    assert set(stores) == set(effects(first, "store"))
    if name not in ("registers", "product"):
        assert loads == effects(first, "load")


@pytest.mark.parametrize("name", ["exchange", "exchange of bits", "shuffle", "chain"])
def test_communication_stands_at_the_conversion(name: str) -> None:
    """Barriers, scratch and shuffles are of the line that says convert_layout."""
    sample = SAMPLES[name]
    everything = dict(stages(sample, 32))
    conversions = set(effects(everything["translate"], "convert"))
    names = list(everything)
    for step in names[names.index("plan_conversions") :]:
        func = everything[step]
        convergent = [i for i in walk(func.body) if Effect.CONVERGENT in i.effect]
        scratch = [i for i in walk(func.body) if "scratch" in i.opcode or "threadgr" in i.opcode]
        communication: list[Op] = [*convergent, *scratch]
        assert communication
        assert {i.loc.line for i in communication} <= conversions
        assert {i.loc.line for i in convergent} == conversions


def test_the_samples_use_every_op() -> None:
    """Otherwise the tests above say less than they seem to."""
    found = {
        type(item)
        for sample in SAMPLES.values()
        for _, func in stages(sample, 32)
        for item in walk(func.body)
    }
    # What a CPU multiplies.
    assert set().union(*LEGAL.values()) - found == {matrix.BlockMultiply}
