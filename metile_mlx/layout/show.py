"""Pictures of a layout: a table for the terminal and a standalone SVG drawing (SPEC L6)."""

from __future__ import annotations

import colorsys
import shutil
import textwrap
from dataclasses import dataclass
from typing import Protocol
from xml.sax.saxutils import escape

import numpy as np

from metile_mlx.errors import LayoutError
from metile_mlx.layout.affine import Indices, IntArray, as_int
from metile_mlx.target import SIMD_WIDTH

MIN_WIDTH = 20
"""Columns that hold one cell of the largest layout with its row header."""

MAX_CELLS = 1024
"""Elements an SVG shows; a larger tile is cut there and the drawing says so."""

CELL_HEIGHT = 26
MARGIN = 20
FONT = "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Owned(Protocol):
    """What a picture needs to know of a layout."""

    @property
    def size(self) -> int: ...
    @property
    def thread_count(self) -> int: ...
    @property
    def elements_per_thread(self) -> int: ...
    def owner(self, index: IntArray, /) -> Indices: ...
    def register(self, index: IntArray, /) -> Indices: ...


def table(layout: Owned, width: int | None = None) -> str:
    """Ownership as text: `thread.register` of each element, rows a power of two of elements.

    Args:
        layout: what to show, all of it.
        width: no line is longer; at least 20. The terminal's width when None.

    Raises:
        LayoutError: a width below 20.
    """
    if width is None:
        width = max(shutil.get_terminal_size().columns, MIN_WIDTH)
    elif as_int(width, "[ThreadLayout.table] width") < MIN_WIDTH:
        raise LayoutError(
            f"[ThreadLayout.table] width must be at least {MIN_WIDTH} columns, got {width}"
        )
    elements = np.arange(layout.size)
    owners, registers = layout.owner(elements).tolist(), layout.register(elements).tolist()
    cells = [f"{thread}.{slot}" for thread, slot in zip(owners, registers, strict=True)]
    label = len(str(layout.size - 1))
    cell = 1 + max(len(text) for text in cells)
    fitting = (width - label - 2) // cell
    columns = min(1 << (fitting.bit_length() - 1), 32, layout.size)

    lines = textwrap.wrap(f"{layout}", width)
    lines += textwrap.wrap(f"{_summary(layout)}; thread.register of each element", width)
    lines.append(" " * label + " |" + "".join(f"+{c}".rjust(cell) for c in range(columns)))
    lines.append("-" * label + "-+" + "-" * (cell * columns))
    for start in range(0, layout.size, columns):
        row = "".join(text.rjust(cell) for text in cells[start : start + columns])
        lines.append(f"{start:>{label}} |{row}")
    return "\n".join(lines)


def svg(layout: Owned) -> str:
    """Ownership as a standalone SVG: cells in element order, coloured by simdgroup, with a legend.

    A cell's text is its owner (`thread`, or `thread.register` where threads hold several elements);
    its tooltip spells out element, thread, register, simdgroup and lane. At most 1024 elements are
    drawn, and the drawing says when there are more.
    """
    return _Drawing.of(layout).render()


def _summary(layout: Owned) -> str:
    groups = layout.thread_count // SIMD_WIDTH
    per_thread = layout.elements_per_thread
    return (
        f"{layout.size} elements, {layout.thread_count} threads in {groups} "
        f"simdgroup{'s' if groups > 1 else ''}, {per_thread} per thread"
    )


def _colour(group: int, groups: int) -> str:
    """A light fill for a simdgroup; near-black text keeps a contrast above 7 on each of them."""
    if groups <= 8:
        hue, lightness = (0.58 + group / groups) % 1, 0.84
    else:
        # Neighbouring groups get far hues, and groups of near hues differ in lightness.
        hue, lightness = (0.58 + group * 0.381966) % 1, (0.88, 0.80, 0.72)[group % 3]
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, 0.75))
    return f"#{red:02x}{green:02x}{blue:02x}"


@dataclass(frozen=True)
class _Drawing:
    """Geometry of one SVG, in user units, and its parts from top to bottom."""

    layout: Owned
    shown: int
    columns: int
    cell_width: int
    left: int
    top: int

    @classmethod
    def of(cls, layout: Owned) -> _Drawing:
        columns = 8 if layout.size <= 64 else 16 if layout.size <= 256 else 32
        digits = len(str(layout.thread_count - 1))
        if layout.elements_per_thread > 1:
            digits += 1 + len(str(layout.elements_per_thread - 1))
        left = MARGIN + 8 + 7 * len(str(layout.size - 1))
        shown = min(layout.size, MAX_CELLS)
        return cls(layout, shown, columns, max(32, 10 + 8 * digits), left, MARGIN + 72)

    def render(self) -> str:
        groups = self.layout.thread_count // SIMD_WIDTH
        title = escape(str(self.layout))
        grid_width = max(self.columns * self.cell_width, 8 * len(title))
        per_row = max(1, grid_width // 110)
        grid_bottom = self.top + -(-self.shown // self.columns) * CELL_HEIGHT
        width = self.left + grid_width + MARGIN
        height = grid_bottom + 24 + -(-groups // per_row) * 22 + MARGIN
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" font-family="{FONT}">',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            *self._heading(title),
            *self._headers(),
            *self._cells(groups),
            *self._legend(groups, grid_bottom + 24, per_row),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _heading(self, title: str) -> list[str]:
        cut = f"; the first {self.shown} shown" if self.shown < self.layout.size else ""
        return [
            f'<text x="{MARGIN}" y="34" font-size="15" font-weight="bold" fill="#111111">'
            f"{title}</text>",
            f'<text x="{MARGIN}" y="54" font-size="12" fill="#444444">'
            f"{_summary(self.layout)}{cut}</text>",
        ]

    def _headers(self) -> list[str]:
        style = 'font-size="11" fill="#555555"'
        lines = []
        for column in range(self.columns):
            x = self.left + column * self.cell_width + self.cell_width // 2
            lines.append(
                f'<text x="{x}" y="{self.top - 8}" text-anchor="middle" {style}>+{column}</text>'
            )
        for row in range(-(-self.shown // self.columns)):
            y = self.top + row * CELL_HEIGHT + 17
            lines.append(
                f'<text x="{self.left - 8}" y="{y}" text-anchor="end" {style}>'
                f"{row * self.columns}</text>"
            )
        return lines

    def _cells(self, groups: int) -> list[str]:
        elements = np.arange(self.shown)
        owners = self.layout.owner(elements).tolist()
        registers = self.layout.register(elements).tolist()
        lines = []
        for element, (thread, slot) in enumerate(zip(owners, registers, strict=True)):
            x = self.left + element % self.columns * self.cell_width
            y = self.top + element // self.columns * CELL_HEIGHT
            group = thread // SIMD_WIDTH
            text = f"{thread}.{slot}" if self.layout.elements_per_thread > 1 else f"{thread}"
            lines.append(
                f"<g><title>element {element}: thread {thread}, register {slot} "
                f"(simdgroup {group}, lane {thread % SIMD_WIDTH})</title>"
                f'<rect x="{x}" y="{y}" width="{self.cell_width}" height="{CELL_HEIGHT}" '
                f'fill="{_colour(group, groups)}" stroke="#ffffff" stroke-width="2"/>'
                f'<text x="{x + self.cell_width // 2}" y="{y + 17}" font-size="12" '
                f'text-anchor="middle" fill="#111111">{text}</text></g>'
            )
        return lines

    def _legend(self, groups: int, top: int, per_row: int) -> list[str]:
        lines = []
        for group in range(groups):
            x = self.left + group % per_row * 110
            y = top + group // per_row * 22
            lines.append(
                f'<rect x="{x}" y="{y}" width="14" height="14" fill="{_colour(group, groups)}" '
                f'stroke="#888888"/><text x="{x + 20}" y="{y + 11}" font-size="12" '
                f'fill="#111111">simdgroup {group}</text>'
            )
        return lines
