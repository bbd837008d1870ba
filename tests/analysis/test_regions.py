"""Regions of offsets, and what two are together, against sets of them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from metile_mlx.analysis.regions import Region, joined

SIDES = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), max_size=3)
REGIONS = st.builds(Region.of, st.integers(0, 6), SIDES)


def offsets(base: int, sides: tuple[tuple[int, int], ...] | list[tuple[int, int]]) -> set[int]:
    steps = [[stride * i for i in range(extent)] for stride, extent in sides]
    return {base + sum(step) for step in product(*steps)}


@given(st.integers(0, 9), SIDES)
def test_the_form_is_the_same_set(base: int, sides: list[tuple[int, int]]) -> None:
    region = Region.of(base, sides)
    found = offsets(region.base, region.sides)
    assert found == offsets(base, sides)
    event(f"{len(region.sides)} sides")
    for size in {1, len(found), max(found) + 1}:
        assert not region.is_all(size) or found == set(range(size))
    assert all(extent > 1 for _, extent in region.sides)
    assert [stride for stride, _ in region.sides] == sorted({stride for stride, _ in region.sides})


@given(REGIONS, st.integers(0, 8), st.data())
def test_what_is_joined_is_both(one: Region, apart: int, data: st.DataObject) -> None:
    sides = list(one.sides)
    if sides and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(sides) - 1))
        sides[at] = sides[at][0], data.draw(st.integers(1, 6))
    other = data.draw(st.one_of(REGIONS, st.just(Region.of(one.base + apart, sides))))
    both = one.joined(other)
    event(f"joined: {both is not None}")
    assert other.joined(one) == both
    if both is not None:
        union = offsets(one.base, one.sides) | offsets(other.base, other.sides)
        assert offsets(both.base, both.sides) == union


@given(st.lists(REGIONS, max_size=4))
def test_joining_several_loses_and_adds_nothing(regions: list[Region]) -> None:
    left = joined(regions)
    event(f"{len(regions)} became {len(left)}")
    assert set().union(*(offsets(r.base, r.sides) for r in left)) == set().union(
        *(offsets(r.base, r.sides) for r in regions)
    )


@pytest.mark.parametrize(
    ("regions", "size"),
    [
        ([(0, [(1009, 7), (504, 2), (1, 504)]), (1008, [(1009, 7), (1, 1)])], 1009 * 7),
        ([(0, [(1009, 7), (1, 2), (2, 504)]), (1008, [(1009, 7)])], 1009 * 7),
        ([(0, [(2, 50)]), (1, [(2, 50)])], 100),
        ([(0, [(3, 9)]), (1, [(3, 9)]), (2, [(3, 9)])], 27),
        ([(10, [(1, 10)]), (0, [(1, 15)])], 20),
        ([(0, [])], 1),
    ],
)
def test_k7_regions_that_are_all_of_an_array(
    regions: list[tuple[int, list[tuple[int, int]]]], size: int
) -> None:
    (whole,) = joined(Region.of(base, sides) for base, sides in regions)
    assert whole.is_all(size)
    assert not whole.is_all(size + 1)
    # Without any one of several, or with one of them an element further on, something is missing.
    for at, (base, sides) in enumerate(regions):
        rest = [Region.of(*region) for number, region in enumerate(regions) if number != at]
        assert not any(region.is_all(size) for region in joined(rest))
        moved = joined([*rest, Region.of(base + 1, sides)])
        assert not any(region.is_all(size) for region in moved)
