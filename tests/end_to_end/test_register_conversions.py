"""Conversions of tiles with several elements per thread, each lowering forced (SPEC C6, F38)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from random import Random

import pytest

import metile_mlx as metile
from metile_mlx.errors import CompileError
from metile_mlx.layout import costs
from metile_mlx.runtime import toolchain
from tests.end_to_end.test_conversions_run import SHIPPED, Case, chained, computed, straight
from tests.support.levels import cpu_level
from tests.support.profile import count
from tests.support.public import DTYPES, compile_all, same_bits
from tests.support.register_layouts import KINDS, pair

SHAPES = ((5, 2), (6, 2), (5, 1), (7, 2), (5, 3), (6, 1), (6, 3), (8, 2), (5, 4))
"""Bits of the thread and of the register; the full profile has larger ones too."""
LARGE = ((10, 5), (10, 1), (9, 3), (6, 5), (8, 4), (5, 5))
KERNELS = (straight, computed, chained)
SOME = 8
"""Of each dtype, on every change; the others, of the full profile, have -O1, ten times as fast."""
WISHES = ("shuffle", "scratch", "partial", "auto")
"""The schedules, and `partial`: what costs would choose if threadgroup memory were very slow."""


class Wish(Case):
    """A case whose `conversion` is one of WISHES."""

    def prepare(self, backend: str) -> metile.Dispatch:
        if self.conversion != "partial":
            return super().prepare(backend)
        with preferred(self.conversion):
            return replace(self, conversion="auto").prepare(backend)


@contextmanager
def preferred(wish: str) -> Iterator[None]:
    """Inside, accesses of threadgroup memory seem to cost a lot, if that is what the wish needs."""
    with pytest.MonkeyPatch.context() as patch:
        if wish == "partial":
            patch.setattr(costs, "ACCESS", 10_000)
        yield


@cache
def cases(dtype: str) -> tuple[Wish, ...]:
    """Kernels of every shape, kind of pair and wish; 84 a wish and dtype in the full profile."""
    rng = Random(f"registers {dtype}")
    found, first = [], list(DTYPES).index(dtype)
    for seed in range(count(ci=SOME, full=336)):
        wish, turn = WISHES[seed % 4], seed // 4
        threads, registers = SHAPES[(seed + 5 * turn) % len(SHAPES)]
        if count(ci=0, full=1) and seed % 42 == 0:
            threads, registers = LARGE[seed // 42 % len(LARGE)]
        kind = KINDS[(turn + first) % 4]
        kind = {"shuffle": "local", "partial": "partial"}.get(wish, kind)
        if kind == "partial" and threads == 5:
            threads = 7
        a, b = pair(rng, threads + registers, 1 << registers, kind)
        kernel = KERNELS[turn % 3]
        found.append(Wish(kernel, dtype, 1 << threads + registers, a, b, wish, seed))
    return tuple(found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_c6_register_tiles_change_owners_bit_for_bit_on_the_cpu(dtype: str) -> None:
    met: dict[str, set[str]] = {wish: set() for wish in WISHES}
    with cpu_level(shipped=dtype == SHIPPED):
        run(cases(dtype)[:SOME], met)
    with pytest.MonkeyPatch.context() as patch:
        flags = ["-O1" if flag == "-O3" else flag for flag in toolchain.KERNEL_FLAGS]
        patch.setattr(toolchain, "KERNEL_FLAGS", flags)
        run(cases(dtype)[SOME:], met)
    assert met["shuffle"] - {"unchanged"} <= {"shuffle", "registers"}
    assert met["scratch"] - {"unchanged"} == {"threadgroup"}
    assert met["partial"] - {"unchanged"} == {"partial"}


def run(chosen: tuple[Wish, ...], met: dict[str, set[str]]) -> None:
    """Compile and compare; adds the mechanisms that each wish has led to."""
    dispatches = [case.prepare("cpu") for case in chosen]
    compile_all(dispatches)
    for case, dispatch in zip(chosen, dispatches, strict=True):
        assert same_bits(case.run(dispatch), case.expected()), case
        for conversion in dispatch.execution_report.layout_conversions:
            met[case.conversion].add(conversion.mechanism)


def test_k8_the_pairs_above_take_every_mechanism() -> None:
    met: set[str] = set()
    for dtype in DTYPES:
        for case in cases(dtype):
            for conversion in case.prepare("cpu").execution_report.layout_conversions:
                met.add(conversion.mechanism)
    assert met - {"unchanged"} == {"registers", "shuffle", "threadgroup", "partial"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_x5_the_reference_needs_no_owners(dtype: str) -> None:
    for case in cases(dtype)[::4]:
        assert same_bits(case.run(case.prepare("reference")), case.expected()), case


def test_c5_a_shuffle_forced_across_simdgroups_is_refused() -> None:
    a, b = pair(Random(3), 8, 4, "partial")
    case = Case(straight, "f32", 256, a, b, "shuffle", 0)
    with pytest.raises(CompileError, match="crosses simdgroups, and a shuffle does not"):
        case.prepare("cpu")


def test_c6_the_largest_tile_goes_through_memory_in_rounds() -> None:
    """128 KiB of f32 through 32 KiB, beside scratch of another dtype in `chained`."""
    rng = Random(15)
    a, b = pair(rng, 15, 32, "any")
    dispatch = Case(chained, "f16", 1 << 15, a, b, "auto", 1).prepare("cpu")
    facts = dispatch.execution_report
    assert {fact.scratch for fact in facts.layout_conversions if fact.scratch} == {
        "scratch_u32", "scratch_f16",
    }  # fmt: skip
    assert sum(each.bytes for each in facts.allocations) <= 32768
    rounds = [fact.cost.rounds for fact in facts.layout_conversions if fact.cost is not None]
    assert min(rounds) >= 4
    case = Case(straight, "f32", 1 << 15, a, b, "auto", 1)
    assert same_bits(case.run(case.prepare("cpu")), case.expected())


def test_e_the_report_explains_the_choice() -> None:
    a, b = pair(Random(8), 9, 8, "partial")
    dispatch = Case(straight, "f32", 512, a, b, "auto", 0).prepare("cpu")
    (fact,) = dispatch.execution_report.layout_conversions
    assert fact.cost is not None
    assert fact.cost.total == min(each.total for each in fact.candidates)
    assert {each.mechanism for each in fact.candidates} == {"threadgroup", "partial"}
    text = dispatch.explain()
    assert "conversion costs:" in text
    assert f"cost {fact.cost.total}" in text
    assert f"taken: the cheapest of {len(fact.candidates)} lowerings" in text
