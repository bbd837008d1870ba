"""`metile.permute`: elements in another order, where they are (SPEC K3, O1, O2, C1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from random import Random

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx.context import Stage
from metile_mlx.errors import VerificationError
from metile_mlx.ir import tile
from metile_mlx.ir.core import Func
from metile_mlx.ir.permute import Permute
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.verify import verify
from tests.support.build import context
from tests.support.mutate import edit, ops_of
from tests.support.profile import count
from tests.support.public import DTYPES, compile_all, payload, random_layout, same_bits
from tests.support.tile_program import TileProgram

BATCHES = 3


@metile.kernel
def permuted(x, y, n, MAP: metile.constexpr, A: metile.constexpr, B: metile.constexpr):
    """y[i] = x[MAP(i)], with MAP written as the layout of that map."""
    source = metile.tensor(x, shape=(n, MAP.size), access="read")
    target = metile.tensor(y, shape=(n, MAP.size), access="write")
    row = metile.program_id(0)
    value = source.load((row, metile.arange(0, MAP.size, layout=A)))
    named = metile.permute(value, MAP.bit_order, xor_mask=MAP.xor_mask)
    target.store((row, metile.arange(0, MAP.size, layout=B)), metile.convert_layout(named, B))


@metile.kernel
def in_place(x, y, n, BITS: metile.constexpr, LAYOUT: metile.constexpr):
    """Values and their indices in the same order: y = x, with no conversion between."""
    source = metile.tensor(x, shape=(n, LAYOUT.size), access="read")
    target = metile.tensor(y, shape=(n, LAYOUT.size), access="write")
    row, i = metile.program_id(0), metile.arange(0, LAYOUT.size, layout=LAYOUT)
    value = metile.permute(source.load((row, i)), range(BITS - 1, -1, -1), xor_mask=3)
    target.store((row, metile.permute(i, range(BITS - 1, -1, -1), xor_mask=3)), value)


@dataclass(frozen=True)
class Case:
    """A map, and the owners before and after it."""

    dtype: str
    map: metile.ThreadLayout
    a: metile.ThreadLayout
    b: metile.ThreadLayout
    seed: int

    def x(self) -> mx.array:
        return payload(self.dtype, (BATCHES, self.map.size), self.seed)

    def expected(self) -> mx.array:
        indices = self.map.logical_index(np.arange(self.map.size))
        return mx.take(self.x(), mx.array(indices), axis=1)

    def prepare(self, backend: str) -> metile.Dispatch:
        x = self.x()
        arguments = (x, metile.empty(x.shape, x.dtype), BATCHES)
        return permuted[(BATCHES,)].prepare(
            *arguments, MAP=self.map, A=self.a, B=self.b, backend=backend
        )

    def run(self, dispatch: metile.Dispatch) -> mx.array:
        x = self.x()
        return dispatch(x, mx.zeros_like(x), BATCHES)


@cache
def cases() -> tuple[Case, ...]:
    rng = Random(5)
    return tuple(
        Case(dtype, *(random_layout(rng, 32 << seed % 4) for _ in range(3)), seed)
        for dtype in DTYPES
        for seed in range(count(ci=8, full=200))
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_any_order_of_index_bits_moves_every_bit(backend: str) -> None:
    """The emulator runs the same kernels when this file is done."""
    dispatches = [case.prepare(backend) for case in cases()]
    if backend == "cpu":
        compile_all(dispatches)
    for case, dispatch in zip(cases(), dispatches, strict=True):
        assert same_bits(case.run(dispatch), case.expected()), case


def test_it_needs_no_communication_of_its_own() -> None:
    x = payload("f32", (BATCHES, 64))
    layout = metile.ThreadLayout((2, 0, 1, 5, 3, 4), xor_mask=9)
    reverse = metile.ThreadLayout((5, 4, 3, 2, 1, 0))
    # The owners that a permuted tile has: with them there is nothing to convert.
    owners = reverse.map.inverse() @ layout.map
    there = metile.ThreadLayout(owners.bit_order, owners.constant)
    dispatch = permuted[(BATCHES,)].prepare(
        x, metile.empty(x.shape, x.dtype), BATCHES, MAP=reverse, A=layout, B=there
    )
    (fact,) = dispatch.execution_report.layout_conversions
    assert fact.mechanism == "unchanged"
    assert dispatch.execution_report.allocations == []
    case = Case("f32", reverse, layout, there, 0)
    assert same_bits(case.run(dispatch), case.expected())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_butterfly_partner_is_one_shuffle_within_simdgroups(dtype: str) -> None:
    """SPEC C1: x[i ^ 2**k] for lane bits, through scratch for the bit above them."""
    x = payload(dtype, (BATCHES, 64))
    rows = metile.ThreadLayout.identity(64)
    cases = [
        Case(dtype, metile.ThreadLayout(range(6), xor_mask=1 << k), rows, rows, 0) for k in range(6)
    ]
    dispatches = [case.prepare("cpu") for case in cases]
    compile_all(dispatches)
    for k, (case, dispatch) in enumerate(zip(cases, dispatches, strict=True)):
        (fact,) = dispatch.execution_report.layout_conversions
        assert (fact.mechanism, fact.lane_rule) == (
            ("shuffle", f"lane = lane ^ {1 << k}") if k < 5 else ("threadgroup", None)
        )
        partner = mx.take(x, mx.bitwise_xor(mx.arange(64), 1 << k), axis=1)
        assert same_bits(case.run(dispatch), partner)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_index_tiles_are_permuted_too_and_outputs_are_known_to_be_covered(backend: str) -> None:
    """SPEC K7: the analysis follows indices through it, so nothing is filled."""
    x = payload("i32", (BATCHES, 64))
    layout = metile.ThreadLayout((2, 0, 1, 5, 3, 4), xor_mask=9)
    out = metile.empty(x.shape, x.dtype)
    dispatch = in_place[(BATCHES,)].prepare(x, out, BATCHES, BITS=6, LAYOUT=layout, backend=backend)
    assert same_bits(dispatch(x, out, BATCHES), x)
    (fact,) = dispatch.execution_report.coverage
    assert fact.proven


def test_gradients_go_back_the_same_way() -> None:
    """SPEC X7."""
    layout, reverse = metile.ThreadLayout.identity(64), metile.ThreadLayout((5, 4, 3, 2, 1, 0))
    x, weights = mx.random.normal((2, BATCHES, 64))

    def loss(x: mx.array) -> mx.array:
        out = metile.empty(x.shape, x.dtype)
        return mx.sum(
            permuted[(BATCHES,)](x, out, BATCHES, MAP=reverse, A=layout, B=layout) * weights
        )

    expected = mx.take(weights, mx.array(reverse.logical_index(np.arange(64))), axis=1)
    assert mx.array_equal(mx.grad(loss)(x), expected)


@metile.kernel
def wrong(x, y, MAP: metile.constexpr, MASK: metile.constexpr = 0):
    i = metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    metile.tensor(y, shape=64, access="write").store(i, metile.permute(value, MAP, MASK))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"MAP": 3}, "[permute] bit_order is 3, expected ints known at compile time"),
        ({"MAP": None, "MASK": 64}, "[permute] xor_mask is 64, expected 0..63"),
        ({"MAP": None, "MASK": -1}, "[permute] xor_mask is -1, expected 0..63"),
        ({"MAP": None, "MASK": 0.5}, "[permute] xor_mask is 0.5, expected an int known at "),
    ],
)
def test_d_what_is_no_order_is_an_error_at_the_call(
    arguments: dict[str, object], message: str
) -> None:
    x = mx.zeros(64)
    with pytest.raises(metile.CompileError) as caught:
        wrong[1].prepare(x, metile.empty(64, x.dtype), **arguments)
    assert message in str(caught.value)
    assert "^" in str(caught.value)


@metile.kernel
def too_short(x, y):
    i = metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    metile.tensor(y, shape=64, access="write").store(i, metile.permute(value, (1, 0, 2)))


@metile.kernel
def two_dimensional(x, y):
    i = metile.arange(0, 64)
    value = metile.reshape(metile.tensor(x, shape=64).load(i), (8, 8))
    metile.tensor(y, shape=64, access="write").store(i, metile.permute(value, (1, 0, 2, 3, 4, 5)))


@metile.kernel
def unconverted(x, y):
    i = metile.arange(0, 64)
    value = metile.tensor(x, shape=64).load(i)
    metile.tensor(y, shape=64, access="write").store(i, metile.permute(value, xor_mask=1))


@pytest.mark.parametrize(
    ("kernel", "error", "message"),
    [
        (
            too_short,
            metile.CompileError,
            "[permute] bit_order is (1, 0, 2), expected a permutation of 0..5 for 64 elements",
        ),
        (
            two_dimensional,
            metile.CompileError,
            "[permute] got tile<8x8xf32>, expected a one-dimensional tile",
        ),
        (
            unconverted,
            metile.OwnershipError,
            "'value_permuted' has ThreadLayout((0, 1, 2, 3, 4, 5), xor_mask=1)",
        ),
    ],
    ids=["too short", "two-dimensional", "unconverted"],
)
def test_d_tiles_that_do_not_fit(
    kernel: metile.Kernel, error: type[metile.MetileError], message: str
) -> None:
    x = mx.zeros(64)
    with pytest.raises(error) as caught:
        kernel[1].prepare(x, metile.empty(64, x.dtype))
    assert message in str(caught.value)


def planned_program() -> tuple[Func, Func]:
    """Stage.OWNED and Stage.PLANNED of a permutation and a conversion."""
    layout = metile.ThreadLayout((3, 4, 5, 0, 1, 2), xor_mask=5)
    p = TileProgram()
    at = p.lanes(64, layout=layout)
    value = p.load(p.tensor("x", (64,), "read"), at)
    named = p.add(Permute(value, (5, 4, 3, 2, 1, 0), 3), "named")
    p.store(p.tensor("y", (64,), "write"), at, value=p.add(tile.Convert(named, layout), "moved"))
    owned = infer_ownership(p.func(), context())
    return owned, plan_conversions(owned, context())


@pytest.mark.parametrize("stage", [Stage.OWNED, Stage.PLANNED])
@pytest.mark.parametrize(
    "change",
    [
        {"bit_order": (4, 5, 3, 2, 1, 0)},
        {"xor_mask": 2},
        {"bit_order": (0, 1, 2, 3, 4, 5), "xor_mask": 0},
    ],
)
def test_c4_another_order_than_the_program_before_is_rejected(
    stage: Stage, change: dict[str, object]
) -> None:
    """Planted fault: types that follow from it are changed with it."""
    owned, planned = planned_program()
    func = owned if stage is Stage.OWNED else planned
    verify(func, stage, context(), owned)
    (item,) = ops_of(func, Permute)
    with pytest.raises(VerificationError):
        verify(edit(func, {item: (replace(item, **change),)}), stage, context(), owned)  # type: ignore[arg-type]


def test_c4_owners_that_are_not_what_was_held_before_are_rejected() -> None:
    """Planted fault: the result says other owners; what reads it agrees with the lie."""
    owned, planned = planned_program()
    (item,) = ops_of(planned, Permute)
    (value,) = item.results
    lie = value.type.with_layout(metile.ThreadLayout((0, 1, 2, 3, 4, 5)))  # type: ignore[union-attr]
    other = type(value)(lie, value.name, value.loc)
    ops = tuple(
        replace(each, results=(other,)) if each is item else each.with_operands({value: other})
        for each in planned.body.ops
    )
    with pytest.raises(VerificationError) as caught:
        verify(planned.with_body(replace(planned.body, ops=ops)), Stage.PLANNED, context(), owned)
    assert "a slot holds another element after it, expected what it held before" in (
        caught.value.message
    )
