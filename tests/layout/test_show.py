"""The table and the drawing of a layout (SPEC L6)."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from metile_mlx.errors import LayoutError
from metile_mlx.layout import ThreadLayout
from metile_mlx.layout.show import INK, colour

TRANSPOSE = ThreadLayout((3, 4, 5, 0, 1, 2))
ADJACENT = ThreadLayout((8, 9, 0, 1, 2, 3, 4, 5, 6, 7), elements_per_thread=4)
LARGEST = ThreadLayout.identity(32768, elements_per_thread=32)
SAMPLES = [
    ThreadLayout.identity(32),
    TRANSPOSE,
    ThreadLayout((7, 6, 5, 4, 3, 2, 1, 0), 5),
    ThreadLayout(range(6), 21, 2),
    ADJACENT,
    ThreadLayout.identity(1024),
]
SVG = "{http://www.w3.org/2000/svg}"


def owners(layout: ThreadLayout) -> list[str]:
    """`thread.register` of each element in order."""
    return [f"{layout.owner(e)}.{layout.register(e)}" for e in range(layout.size)]


def rows(table: str) -> list[tuple[int, list[str]]]:
    """(first element, cells) of each row of a table, below its rule."""
    lines = table.splitlines()
    rule = next(i for i, line in enumerate(lines) if re.fullmatch(r"-+\+-+", line))
    split = (line.split("|") for line in lines[rule + 1 :])
    return [(int(head), cells.split()) for head, cells in split]


def test_the_table_of_the_transpose() -> None:
    assert TRANSPOSE.table(80).splitlines()[:5] == [
        "ThreadLayout((3, 4, 5, 0, 1, 2))",
        "64 elements, 64 threads in 2 simdgroups, 1 per thread; thread.register of each",
        "element",
        "   |   +0   +1   +2   +3   +4   +5   +6   +7",
        "---+----------------------------------------",
    ]
    assert TRANSPOSE.table(80).splitlines()[6] == " 8 |  1.0  9.0 17.0 25.0 33.0 41.0 49.0 57.0"


@pytest.mark.parametrize("width", [20, 40, 80, 132, 400])
@pytest.mark.parametrize("layout", [*SAMPLES, LARGEST], ids=str)
def test_a_table_fits_its_width_and_holds_every_owner(layout: ThreadLayout, width: int) -> None:
    """L6: lines within the width, rows a power of two long, each element in its place."""
    table = layout.table(width)
    assert max(map(len, table.splitlines())) <= width
    found = rows(table)
    columns = len(found[0][1])
    assert columns & (columns - 1) == 0
    assert [start for start, _ in found] == list(range(0, layout.size, columns))
    if layout is not LARGEST:
        assert [cell for _, cells in found for cell in cells] == owners(layout)


def test_rows_are_the_longest_that_fit() -> None:
    """L6: at every width; a row of twice as many elements is too long, or longer than 32."""
    for width in range(20, 200):
        table = TRANSPOSE.table(width)
        columns = len(rows(table)[0][1])
        assert max(map(len, table.splitlines())) <= width
        assert columns == 32 or len("63 |") + 2 * columns * len(" 63.0") > width


def test_the_table_follows_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: also a terminal narrower than any table."""
    monkeypatch.setenv("COLUMNS", "40")
    assert TRANSPOSE.table() == TRANSPOSE.table(40)
    monkeypatch.setenv("COLUMNS", "5")
    assert TRANSPOSE.table() == TRANSPOSE.table(20)


@pytest.mark.parametrize("width", [19, 0, -80])
def test_a_width_too_small_is_refused(width: int) -> None:
    with pytest.raises(LayoutError) as caught:
        TRANSPOSE.table(width)
    assert str(caught.value) == (
        f"[ThreadLayout.table] width must be at least 20 columns, got {width}"
    )


def layer(root: ElementTree.Element, name: str) -> ElementTree.Element:
    found = root.find(f"{SVG}g[@id='{name}']")
    assert found is not None
    return found


@pytest.mark.parametrize("layout", SAMPLES, ids=str)
def test_the_drawing_holds_each_owner_coloured_by_simdgroup(layout: ThreadLayout) -> None:
    """L6: parses as XML; text, tooltip and fill of every cell, and the legend, agree."""
    root = ElementTree.fromstring(layout.svg())
    assert root.tag == f"{SVG}svg"
    boxes, texts = list(layer(root, "cells")), list(layer(root, "owners"))
    legend = layer(root, "legend")
    fills = [box.get("fill") for box in legend.iter(f"{SVG}rect")]
    assert [text.text for text in legend.iter(f"{SVG}text")] == [
        f"simdgroup {group}" for group in range(layout.thread_count // 32)
    ]
    assert len(boxes) == len(texts) == layout.size
    for element, (box, text) in enumerate(zip(boxes, texts, strict=True)):
        thread, register = layout.owner(element), layout.register(element)
        several = layout.elements_per_thread > 1
        assert text.text == (f"{thread}.{register}" if several else f"{thread}")
        assert box.findtext(f"{SVG}title") == (
            f"element {element}: thread {thread}, register {register} "
            f"(simdgroup {thread // 32}, lane {thread % 32})"
        )
        assert box.get("fill") == fills[thread // 32]


@pytest.mark.parametrize("layout", [*SAMPLES, LARGEST], ids=str)
def test_the_drawing_stays_within_its_canvas(layout: ThreadLayout) -> None:
    root = ElementTree.fromstring(layout.svg())
    width, height = int(root.get("width", 0)), int(root.get("height", 0))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    spots = set()
    for box in layer(root, "cells"):
        x, y = int(box.get("x", -1)), int(box.get("y", -1))
        spots.add((x, y))
        assert 0 <= x <= width - int(box.get("width", 0))
        assert 0 <= y <= height - int(box.get("height", 0))
    assert len(spots) == min(layout.size, 1024)
    # Monospace glyphs are 0.6 em wide, so the leftmost texts end inside when this holds.
    for text in root.findall(f"{SVG}text"):
        right = int(text.get("x", 0)) + 0.6 * int(text.get("font-size", 0)) * len(text.text or "")
        assert right <= width
    for text in layer(root, "legend").iter(f"{SVG}text"):
        assert int(text.get("x", 0)) + 0.6 * 12 * len(text.text or "") <= width
        assert int(text.get("y", 0)) < height


def test_a_large_layout_is_cut_and_says_so() -> None:
    root = ElementTree.fromstring(LARGEST.svg())
    assert len(layer(root, "owners")) == 1024
    assert any("the first 1024 elements are drawn" in (text.text or "") for text in root)
    assert "are drawn" not in ThreadLayout.identity(1024).svg()


def luminance(colour_text: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [int(colour_text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16, 32])
def test_colours_differ_and_text_on_them_is_readable(groups: int) -> None:
    """The contrast of text and fill reaches 7 (WCAG AAA) and no two simdgroups share a fill."""
    fills = [colour(group, groups) for group in range(groups)]
    assert len(set(fills)) == groups
    for fill in fills:
        assert (luminance(fill) + 0.05) / (luminance(INK) + 0.05) >= 7
