"""Thread layouts against enumeration, and every rule of SPEC L4 with its exact message."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import pickle
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metile_mlx.errors import CompileError, LayoutError
from metile_mlx.layout import ThreadLayout, parse, transition

TRANSPOSE = ThreadLayout((3, 4, 5, 0, 1, 2))
ADJACENT = ThreadLayout((8, 9, 0, 1, 2, 3, 4, 5, 6, 7), elements_per_thread=4)


@st.composite
def layouts(draw: st.DrawFn) -> ThreadLayout:
    """Any legal layout."""
    registers = draw(st.integers(0, 5))
    bits = registers + draw(st.integers(5, 10))
    order = draw(st.permutations(range(bits)))
    return ThreadLayout(order, draw(st.integers(0, (1 << bits) - 1)), 1 << registers)


@st.composite
def layout_pairs(draw: st.DrawFn) -> tuple[ThreadLayout, ThreadLayout]:
    """Two legal layouts of one geometry."""
    first = draw(layouts())
    order = draw(st.permutations(range(len(first.bit_order))))
    mask = draw(st.integers(0, first.size - 1))
    return first, ThreadLayout(order, mask, first.elements_per_thread)


def by_definition(layout: ThreadLayout, thread: int, register: int) -> int:
    """SPEC L2, word for word."""
    p = thread + register * layout.thread_count
    placed = sum((p >> source & 1) << b for b, source in enumerate(layout.bit_order))
    return placed ^ layout.xor_mask


def owner_table(layout: ThreadLayout) -> list[tuple[int, int]]:
    """(thread, register) of each element, found by walking all slots."""
    table = [(-1, -1)] * layout.size
    for register in range(layout.elements_per_thread):
        for thread in range(layout.thread_count):
            index = by_definition(layout, thread, register)
            assert table[index] == (-1, -1)
            table[index] = (thread, register)
    return table


def check_against_enumeration(layout: ThreadLayout) -> None:
    table = owner_table(layout)
    elements = np.arange(layout.size)
    owners, registers = layout.owner(elements), layout.register(elements)
    assert list(zip(owners.tolist(), registers.tolist(), strict=True)) == table
    np.testing.assert_array_equal(layout.logical_index(owners, registers), elements)


@pytest.mark.parametrize("registers", [1, 2])
def test_owner_and_register_invert_every_bit_order_at_32_threads(registers: int) -> None:
    """L2."""
    bits = 5 + registers.bit_length() - 1
    masks = itertools.cycle([0, 1, 5, 16, 21, 31])
    for order in itertools.permutations(range(bits)):
        check_against_enumeration(ThreadLayout(order, next(masks), registers))


def test_owner_and_register_invert_under_every_xor_mask_of_a_few_orders() -> None:
    """L2."""
    for order in ((0, 1, 2, 3, 4), (1, 0, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 1, 3)):
        for mask in range(32):
            check_against_enumeration(ThreadLayout(order, mask))


@given(layouts(), st.data())
def test_owner_and_register_invert_any_legal_layout(
    layout: ThreadLayout, data: st.DataObject
) -> None:
    """L2, with integers and with arrays."""
    slots = np.arange(layout.size)
    threads, registers = slots % layout.thread_count, slots // layout.thread_count
    elements = layout.logical_index(threads, registers)
    assert np.array_equal(np.sort(elements), slots)
    np.testing.assert_array_equal(layout.owner(elements), threads)
    np.testing.assert_array_equal(layout.register(elements), registers)

    thread = data.draw(st.integers(0, layout.thread_count - 1))
    register = data.draw(st.integers(0, layout.elements_per_thread - 1))
    element = layout.logical_index(thread, register)
    assert element == by_definition(layout, thread, register)
    assert (layout.owner(element), layout.register(element)) == (thread, register)
    assert type(element) is type(layout.owner(element)) is type(layout.register(element)) is int


@given(layouts())
def test_the_map_is_the_layout_as_algebra(layout: ThreadLayout) -> None:
    """L5: a bit permutation and a constant, and `slot_map` is its inverse."""
    slots = np.arange(layout.size)
    threads, registers = slots % layout.thread_count, slots // layout.thread_count
    np.testing.assert_array_equal(layout.map(slots), layout.logical_index(threads, registers))
    assert layout.map.is_permutation
    assert layout.map.bit_order == layout.bit_order
    assert layout.map.constant == layout.xor_mask
    assert (layout.slot_map @ layout.map).is_identity


def test_arrays_of_threads_and_registers_broadcast() -> None:
    grid = ADJACENT.logical_index(np.arange(256)[:, None], np.arange(4))
    np.testing.assert_array_equal(grid, np.arange(1024).reshape(256, 4))
    np.testing.assert_array_equal(ADJACENT.logical_index(7, np.arange(4)), [28, 29, 30, 31])
    assert TRANSPOSE.owner(np.arange(6, dtype=np.uint8).reshape(2, 3)).shape == (2, 3)


def test_identity_is_striped_over_the_registers() -> None:
    """L3: thread t of identity(1024, elements_per_thread=4) owns t + 256 * r."""
    layout = ThreadLayout.identity(1024, elements_per_thread=4)
    assert (layout.size, layout.thread_count, layout.elements_per_thread) == (1024, 256, 4)
    for thread in range(256):
        owned = [layout.logical_index(thread, register) for register in range(4)]
        assert owned == [thread + 256 * register for register in range(4)]
    assert ThreadLayout.identity(32) == ThreadLayout((0, 1, 2, 3, 4))
    assert ThreadLayout.identity(32768, 32).thread_count == 1024


def test_register_bits_in_the_low_places_own_adjacent_elements() -> None:
    """L3."""
    for thread in range(256):
        owned = [ADJACENT.logical_index(thread, register) for register in range(4)]
        assert owned == [4 * thread + register for register in range(4)]


def test_exchanging_two_bits_swaps_lanes_within_a_simdgroup() -> None:
    layout = ThreadLayout((1, 0, 2, 3, 4))
    assert [layout.logical_index(t) for t in range(8)] == [0, 2, 1, 3, 4, 6, 5, 7]
    assert transition(ThreadLayout.identity(32), layout).preserves_bits_from(5)


def test_transposed_ownership_reads_columns() -> None:
    assert [TRANSPOSE.logical_index(t) for t in range(64)] == [
        8 * (t % 8) + t // 8 for t in range(64)
    ]


def check_transition(source: ThreadLayout, destination: ThreadLayout) -> None:
    """Every destination slot is fed by the slot that the owner tables say holds its element."""
    feeds = transition(source, destination)
    slots = np.arange(destination.size)
    threads, registers = slots % destination.thread_count, slots // destination.thread_count
    holders = owner_table(source)
    elements = destination.logical_index(threads, registers).tolist()
    expected = [holders[e][0] + holders[e][1] * source.thread_count for e in elements]
    assert feeds(slots).tolist() == expected
    if source.elements_per_thread == 1:
        agree = all(s // 32 == d // 32 for d, s in enumerate(expected))
        assert feeds.preserves_bits_from(5) == agree


def test_transitions_at_32_threads_match_the_owner_table() -> None:
    """C1, L5: 120 bit orders, each as source and as destination of another."""
    orders = list(itertools.permutations(range(5)))
    for k, order in enumerate(orders):
        source = ThreadLayout(order, k % 32)
        for step in (0, 1, 7, 50):
            other = orders[(k * 7 + step) % len(orders)]
            check_transition(source, ThreadLayout(other, (k + step) * 5 % 32))


@given(layout_pairs())
def test_transitions_match_the_owner_table(pair: tuple[ThreadLayout, ThreadLayout]) -> None:
    """C1, L5, and F37: every destination slot, any legal geometry with several registers."""
    source, destination = pair
    if source.size <= 4096:
        check_transition(source, destination)
    assert transition(source, destination).inverse() == transition(destination, source)
    assert transition(source, source).is_identity


def test_the_transpose_crosses_simdgroups() -> None:
    assert not transition(ThreadLayout.identity(64), TRANSPOSE).preserves_bits_from(5)


@pytest.mark.parametrize(
    "destination", [ThreadLayout.identity(128), ThreadLayout.identity(64, elements_per_thread=2)]
)
def test_transitions_between_geometries_are_refused(destination: ThreadLayout) -> None:
    """F37."""
    with pytest.raises(LayoutError) as caught:
        transition(TRANSPOSE, destination)
    assert str(caught.value) == (
        "[transition] both layouts must have the same elements and threads, got "
        f"{TRANSPOSE} with 64 on 64 and {destination} with {destination.size} on "
        f"{destination.thread_count}\n"
        "hint: one kernel has one tile size and one elements_per_thread"
    )


def test_layouts_are_values() -> None:
    """L1: equal and hashed by value, also after their maps were computed and across copies."""
    same = ThreadLayout([3, 4, 5, 0, 1, 2])
    assert same.map.bits == 6
    assert same == TRANSPOSE
    assert hash(same) == hash(TRANSPOSE)
    assert {same: 1}[TRANSPOSE] == 1
    distinct = {TRANSPOSE, ThreadLayout((3, 4, 5, 0, 1, 2), 1), ThreadLayout.identity(64)}
    distinct.add(ThreadLayout.identity(64, elements_per_thread=2))
    assert len(distinct) == 4
    assert pickle.loads(pickle.dumps(same)) == copy.deepcopy(same) == TRANSPOSE


@pytest.mark.parametrize("name", ["bit_order", "xor_mask", "elements_per_thread", "size", "new"])
def test_layouts_are_immutable(name: str) -> None:
    """L1."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(TRANSPOSE, name, 0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(TRANSPOSE, name)


def test_a_list_given_as_bit_order_is_copied() -> None:
    order = [0, 1, 2, 3, 4]
    layout = ThreadLayout(order)
    order[0] = 9
    assert layout.bit_order == (0, 1, 2, 3, 4)


def test_any_sequence_of_integers_is_a_bit_order() -> None:
    """L1: and NumPy integers become plain ones."""
    for order in (range(5), iter([0, 1, 2, 3, 4]), np.arange(5), [np.int8(i) for i in range(5)]):
        layout = ThreadLayout(order, np.uint8(3), np.int64(1))
        assert layout == ThreadLayout((0, 1, 2, 3, 4), 3)
        assert all(type(bit) is int for bit in layout.bit_order)
        assert type(layout.xor_mask) is type(layout.elements_per_thread) is int


def test_repr_is_short() -> None:
    """L1."""
    assert repr(TRANSPOSE) == "ThreadLayout((3, 4, 5, 0, 1, 2))"
    assert repr(ThreadLayout(range(6), 5, 2)) == (
        "ThreadLayout((0, 1, 2, 3, 4, 5), xor_mask=5, elements_per_thread=2)"
    )


@given(layouts())
def test_repr_and_the_command_line_form_read_back(layout: ThreadLayout) -> None:
    """L1."""
    assert eval(repr(layout)) == layout
    order = ",".join(map(str, layout.bit_order))
    assert parse(f"{order} xor={layout.xor_mask} registers={layout.elements_per_thread}") == layout


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("3,4,5,0,1,2", TRANSPOSE),
        ("  3, 4 ,5,0,1,2 ", TRANSPOSE),
        ("0,1,2,3,4 xor=0x1F", ThreadLayout(range(5), 31)),
        ("0,1,2,3,4,5 registers=2", ThreadLayout(range(6), 0, 2)),
    ],
)
def test_parse(text: str, layout: ThreadLayout) -> None:
    assert parse(text) == layout


@pytest.mark.parametrize(
    "text", ["", "abc", "3,4,", "3 4 5", "0,1,2,3,4 xor=-1", "0,1,2,3,4 lanes=2", "0,1,-2"]
)
def test_parse_shows_the_form_it_reads(text: str) -> None:
    with pytest.raises(LayoutError) as caught:
        parse(text)
    assert str(caught.value) == (
        f"[layout] cannot read {text!r} as a layout\n"
        'hint: write the bit order, then options: "3,4,5,0,1,2 xor=5 registers=2"'
    )


RULES: list[tuple[str, Callable[[], object], str, str | None]] = [
    (
        "size a power of two",
        lambda: ThreadLayout.identity(48),
        "[ThreadLayout.identity] size must be a power of two, got 48",
        "use 64 and let bounds or a mask drop what is not needed",
    ),
    (
        "size a power of two, above the largest tile",
        lambda: ThreadLayout.identity(40000),
        "[ThreadLayout.identity] size must be a power of two, got 40000",
        "cover a larger range with more programs (a larger grid)",
    ),
    (
        "size positive",
        lambda: ThreadLayout.identity(0),
        "[ThreadLayout.identity] size must be a power of two, got 0",
        "use 32 and let bounds or a mask drop what is not needed",
    ),
    (
        "size an integer",
        lambda: ThreadLayout.identity(64.0),  # type: ignore[arg-type]
        "[ThreadLayout.identity] size must be an integer, got 64.0",
        None,
    ),
    (
        "at least 32 threads",
        lambda: ThreadLayout(range(4)),
        "[ThreadLayout] a layout has 32 to 1024 threads, got 16 (16 elements, 1 per thread)",
        "use at least 32 elements, or fewer per thread",
    ),
    (
        "at least 32 threads with registers",
        lambda: ThreadLayout.identity(64, elements_per_thread=4),
        "[ThreadLayout] a layout has 32 to 1024 threads, got 16 (64 elements, 4 per thread)",
        "use at least 128 elements, or fewer per thread",
    ),
    (
        "fewer elements than registers",
        lambda: ThreadLayout((), elements_per_thread=2),
        "[ThreadLayout] a layout has 32 to 1024 threads, got 0 (1 elements, 2 per thread)",
        "use at least 64 elements, or fewer per thread",
    ),
    (
        "at most 1024 threads",
        lambda: ThreadLayout.identity(4096, elements_per_thread=2),
        "[ThreadLayout] a layout has 32 to 1024 threads, got 2048 (4096 elements, 2 per thread)",
        "use elements_per_thread=4 or more",
    ),
    (
        "elements_per_thread in the set",
        lambda: ThreadLayout(range(6), elements_per_thread=3),
        "[ThreadLayout] elements_per_thread must be 1, 2, 4, 8, 16 or 32, got 3",
        "a thread holds a power of two of elements, 32 at most",
    ),
    (
        "elements_per_thread at most 32",
        lambda: ThreadLayout(range(12), elements_per_thread=64),
        "[ThreadLayout] elements_per_thread must be 1, 2, 4, 8, 16 or 32, got 64",
        "a thread holds a power of two of elements, 32 at most",
    ),
    (
        "elements_per_thread an integer",
        lambda: ThreadLayout(range(6), elements_per_thread=True),
        "[ThreadLayout] elements_per_thread must be an integer, got True",
        None,
    ),
    (
        "size at most 32768",
        lambda: ThreadLayout(range(16), elements_per_thread=32),
        "[ThreadLayout] a tile has at most 32768 elements (15 bits), got a bit_order of 16 bits",
        "cover a larger range with more programs (a larger grid)",
    ),
    (
        "identity's size at most 32768",
        lambda: ThreadLayout.identity(65536, 32),
        "[ThreadLayout] a tile has at most 32768 elements (15 bits), got a bit_order of 16 bits",
        "cover a larger range with more programs (a larger grid)",
    ),
    (
        "each bit once",
        lambda: ThreadLayout((0, 0, 1, 2, 3)),
        "[ThreadLayout] bit_order must be a permutation of 0..4, got (0, 0, 1, 2, 3): "
        "4 missing, 0 repeated",
        "name each of the 5 slot bits exactly once",
    ),
    (
        "no foreign bit",
        lambda: ThreadLayout((0, 1, -1, 3, 5)),
        "[ThreadLayout] bit_order must be a permutation of 0..4, got (0, 1, -1, 3, 5): "
        "2 and 4 missing, -1 and 5 out of range",
        "name each of the 5 slot bits exactly once",
    ),
    (
        "bits are integers, not bools",
        lambda: ThreadLayout((0, True, 2, 3, 4)),
        "[ThreadLayout] bit_order[1] must be an integer, got True",
        None,
    ),
    (
        "bits are integers, not floats",
        lambda: ThreadLayout((0, 1, 2.0, 3, 4)),  # type: ignore[arg-type]
        "[ThreadLayout] bit_order[2] must be an integer, got 2.0",
        None,
    ),
    (
        "bit_order a sequence",
        lambda: ThreadLayout(32),  # type: ignore[arg-type]
        "[ThreadLayout] bit_order must be a sequence of integers, got 32",
        "ThreadLayout((0, 1, 2, 3, 4)) is the identity on 32 threads; for a size, use "
        "ThreadLayout.identity(32)",
    ),
    (
        "bit_order not text",
        lambda: ThreadLayout("34012"),  # type: ignore[arg-type]
        "[ThreadLayout] bit_order must be a sequence of integers, got '34012'",
        "ThreadLayout((0, 1, 2, 3, 4)) is the identity on 32 threads; for a size, use "
        "ThreadLayout.identity(32)",
    ),
    (
        "xor_mask below size",
        lambda: ThreadLayout(range(5), 32),
        "[ThreadLayout] xor_mask must be in 0..31 for 32 elements, got 32",
        "the mask flips bits of the element index; it has no bits above them",
    ),
    (
        "xor_mask not negative",
        lambda: ThreadLayout(range(5), -1),
        "[ThreadLayout] xor_mask must be in 0..31 for 32 elements, got -1",
        "the mask flips bits of the element index; it has no bits above them",
    ),
    (
        "xor_mask an integer",
        lambda: ThreadLayout(range(5), False),
        "[ThreadLayout] xor_mask must be an integer, got False",
        None,
    ),
    (
        "thread in range",
        lambda: TRANSPOSE.logical_index(64),
        "[ThreadLayout.logical_index] thread must be in 0..63, got 64",
        None,
    ),
    (
        "register in range",
        lambda: TRANSPOSE.logical_index(0, 1),
        "[ThreadLayout.logical_index] register must be in 0..0, got 1",
        None,
    ),
    (
        "owner's index in range",
        lambda: TRANSPOSE.owner(-1),
        "[ThreadLayout.owner] index must be in 0..63, got -1",
        None,
    ),
    (
        "register's index in range, in an array",
        lambda: TRANSPOSE.register(np.array([[0, 99]])),
        "[ThreadLayout.register] index must be in 0..63, got 99",
        None,
    ),
]


@pytest.mark.parametrize(
    ("make", "message", "hint"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES]
)
def test_each_broken_rule_is_named(
    make: Callable[[], object], message: str, hint: str | None
) -> None:
    """L4, D."""
    with pytest.raises(LayoutError) as caught:
        make()
    assert caught.value.message == message
    assert caught.value.hint == hint
    assert isinstance(caught.value, CompileError)


def test_the_extremes_of_every_rule_are_legal() -> None:
    """L4."""
    for registers in (1, 2, 4, 8, 16, 32):
        for threads in (32, 1024):
            layout = ThreadLayout.identity(threads * registers, registers)
            assert (layout.thread_count, layout.size) == (threads, threads * registers)
    assert ThreadLayout(range(5), 31).xor_mask == 31


def test_grouped_holds_neighbours_in_a_thread() -> None:
    """Thread t: elements 4t to 4t + 3, then the same one row of groups further."""
    held = ThreadLayout.grouped(256, 8)
    elements = [held.logical_index(3, register) for register in range(8)]
    assert elements == [12, 13, 14, 15, 140, 141, 142, 143]
    assert ThreadLayout.grouped(256, 8, 1) == ThreadLayout.identity(256, 8)
    assert ThreadLayout.grouped(32, 1, 1) == ThreadLayout.identity(32)
    adjacent = ThreadLayout.grouped(256, 8, 8)
    assert [adjacent.logical_index(3, register) for register in range(8)] == list(range(24, 32))


@pytest.mark.parametrize("neighbours", [1, 2, 8])
def test_grouped_rows_have_threads_of_their_own(neighbours: int) -> None:
    held = ThreadLayout.grouped(256, 8, neighbours, rows=4)
    assert (held.size, held.thread_count) == (1024, 128)
    for thread in range(128):
        rows = {held.logical_index(thread, register) // 256 for register in range(8)}
        assert rows == {thread // 32}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((48, 4), "columns must be a power of two, got 48"),
        ((256, 3), "elements_per_thread must be a power of two, got 3"),
        ((256, 8, 0), "neighbours must be a power of two, got 0"),
        ((256, 8, 4, 6), "rows must be a power of two, got 6"),
        ((256, 4, 8), "8 neighbours, 4 elements per thread and 256 columns: expected none larger"),
        ((32, 8, 4), "threads"),
        ((256, True), "elements must be an integer, got True"),
    ],
)
def test_grouped_says_what_it_takes(given: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        ThreadLayout.grouped(*given)
