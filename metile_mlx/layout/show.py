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
LEGEND_WIDTH = 120
INK = "#111111"
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


def colour(group: int, groups: int) -> str:
    """A light fill for simdgroup `group` of `groups`; the near-black text on it stays easy to read.

    Up to 16 groups differ in hue, with neighbours far apart; the next 16 are the darker shades.
    """
    hues = min(groups, 16)
    step = 7 if hues == 16 else 1
    hue = (0.58 + group * step % hues / hues) % 1
    lightness = 0.86 if group < hues else 0.77
    red, green, blue = (round(255 * part) for part in colorsys.hls_to_rgb(hue, lightness, 0.7))
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
        shown = min(layout.size, MAX_CELLS)
        left = MARGIN + 8 + 7 * len(str(shown - 1))
        return cls(layout, shown, columns, max(40, 10 + 8 * digits), left, MARGIN + 88)

    @property
    def rows(self) -> int:
        return -(-self.shown // self.columns)

    def render(self) -> str:
        groups = self.layout.thread_count // SIMD_WIDTH
        title, summary = str(self.layout), _summary(self.layout)
        if self.shown < self.layout.size:
            summary += f"; the first {self.shown} elements are drawn"
        per_thread = self.layout.elements_per_thread
        cell_text = "each cell: its owner " + ("thread" if per_thread == 1 else "thread.register")
        # A glyph of the monospace fonts is 0.6 of the font size wide.
        width = max(
            self.left + self.columns * self.cell_width + MARGIN,
            2 * MARGIN + round(9.2 * len(title)),
            2 * MARGIN + round(7.4 * len(summary)),
        )
        legend_top = self.top + self.rows * CELL_HEIGHT + 20
        per_row = (width - self.left) // LEGEND_WIDTH
        height = legend_top - (-groups // per_row) * 22 + MARGIN - 8
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" font-family="{FONT}">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{MARGIN}" y="34" font-size="15" font-weight="bold" fill="{INK}">'
            f"{escape(title)}</text>",
            f'<text x="{MARGIN}" y="54" font-size="12" fill="#444444">{escape(summary)}</text>',
            f'<text x="{MARGIN}" y="71" font-size="12" fill="#444444">{cell_text}</text>',
            *self._headers(),
            *self._cells(groups),
            *self._legend(groups, legend_top, per_row),
            "</svg>",
        ]
        return "\n".join(lines) + "\n"

    def _headers(self) -> list[str]:
        lines = ['<g font-size="11" fill="#555555" text-anchor="middle">']
        for column in range(self.columns):
            x = self.left + column * self.cell_width + self.cell_width // 2
            lines.append(f'<text x="{x}" y="{self.top - 8}">+{column}</text>')
        lines += ["</g>", '<g font-size="11" fill="#555555" text-anchor="end">']
        for row in range(self.rows):
            y = self.top + row * CELL_HEIGHT + 17
            lines.append(f'<text x="{self.left - 8}" y="{y}">{row * self.columns}</text>')
        return [*lines, "</g>"]

    def _cells(self, groups: int) -> list[str]:
        elements = np.arange(self.shown)
        owners = self.layout.owner(elements).tolist()
        registers = self.layout.register(elements).tolist()
        boxes, texts = [], []
        for element, (thread, slot) in enumerate(zip(owners, registers, strict=True)):
            x = self.left + element % self.columns * self.cell_width
            y = self.top + element // self.columns * CELL_HEIGHT
            group, lane = divmod(thread, SIMD_WIDTH)
            boxes.append(
                f'<rect x="{x}" y="{y}" width="{self.cell_width}" height="{CELL_HEIGHT}" '
                f'fill="{colour(group, groups)}"><title>element {element}: thread {thread}, '
                f"register {slot} (simdgroup {group}, lane {lane})</title></rect>"
            )
            text = f"{thread}.{slot}" if self.layout.elements_per_thread > 1 else f"{thread}"
            texts.append(f'<text x="{x + self.cell_width // 2}" y="{y + 17}">{text}</text>')
        # The texts lie above the boxes and let the pointer through to the tooltips.
        return [
            '<g id="cells" stroke="#ffffff" stroke-width="2">',
            *boxes,
            "</g>",
            f'<g id="owners" font-size="12" text-anchor="middle" fill="{INK}" '
            'pointer-events="none">',
            *texts,
            "</g>",
        ]

    def _legend(self, groups: int, top: int, per_row: int) -> list[str]:
        lines = [f'<g id="legend" font-size="12" fill="{INK}">']
        for group in range(groups):
            x = self.left + group % per_row * LEGEND_WIDTH
            y = top + group // per_row * 22
            lines.append(
                f'<rect x="{x}" y="{y}" width="14" height="14" fill="{colour(group, groups)}" '
                f'stroke="#888888"/><text x="{x + 20}" y="{y + 11}">simdgroup {group}</text>'
            )
        return [*lines, "</g>"]
