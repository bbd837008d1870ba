"""Line charts of benchmark results, a panel for each group."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.optional import plot_axes

Line = Sequence[tuple[str, float]]


def draw(
    path: Path,
    title: str,
    x_label: str,
    y_label: str,
    panels: Mapping[str, Mapping[str, Line]],
) -> None:
    """Draw named lines of (label, value) points, panels side by side with one legend.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    figure, axes = plot_axes(len(panels), (4.2 * len(panels), 4.4))
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        labels = list(dict.fromkeys(label for line in lines.values() for label, _ in line))
        for index, (line_name, line) in enumerate(lines.items()):
            places = [labels.index(label) for label, _ in line]
            axis.plot(
                places,
                [value for _, value in line],
                marker="osD^vPX*"[index % 8],
                label=line_name,
                linewidth=2.5 if index == 0 else 1.2,
            )
        # Many are names, which need room.
        turned = {"rotation": 60, "ha": "right"} if len(labels) > 8 else {}
        axis.set_xticks(range(len(labels)), labels, **turned)
        axis.set_ylim(bottom=0)
        axis.set_title(name)
        axis.set_xlabel(x_label)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(y_label)
    figure.suptitle("\n".join(textwrap.wrap(title, 40 * len(panels))), fontsize=10)
    handles = {}
    for axis in axes:
        handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=140)
