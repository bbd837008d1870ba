"""What a benchmark leaves behind: where it ran, a JSON file, a table, and its verdict."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Goal
from benchmarks.optional import Console, Table

ROOT = Path(__file__).resolve().parent.parent


def environment(root: Path = ROOT) -> dict[str, Any]:
    """Device, processor, cores, compiler, versions, date and revision, for a JSON file.

    Args:
        root: the source tree whose package is measured.
    """
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        # Results are published: where this tree lies on a disk is nobody's concern.
        "root": "." if root == ROOT else str(root),
        "revision": _revision(root),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "doctor": _doctor(root),
    }


def _revision(root: Path) -> str | None:
    """Commit of the tree; `+` where files differ from it, None where git knows nothing."""
    try:
        commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
        changed = _output(["git", "-C", str(root), "status", "--porcelain", "-uno"])
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit.strip() + ("+" if changed.strip() else "")


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def _doctor(root: Path) -> Any:
    """Findings of the tree's own doctor: processor, backends, compiler and versions."""
    done = subprocess.run(
        [sys.executable, "-m", "metile_mlx", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
    )
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError:
        return {"missing": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def device_line(found: dict[str, Any]) -> str:
    """Processor, threads, compiler and MLX of an `environment`, in one line."""
    doctor = found["doctor"]
    if "missing" in doctor:
        return f"{found['system']}, {found['cores']} cores"
    used = [c["version"] for c in doctor["compilers"] if c["used"]] or ["no C++ compiler"]
    return (
        f"{doctor['machine']['processor']}, {found['cores']} cores, {used[0]}, "
        f"mlx {doctor['versions']['mlx']}, backend {doctor['default']['name'] or 'none'}"
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write `content` to `path`: complete, or not at all."""
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=2, allow_nan=False)
            file.write("\n")
        Path(aside).chmod(0o644)
        os.replace(aside, path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


def plain_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    return [title, line(head), "  ".join("-" * width for width in widths), *map(line, rows)]


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output: with rich where it is installed, else plain."""
    if Table is None or not sys.stdout.isatty():
        print("\n".join(plain_table(title, head, rows)))
        return
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def verdict(goals: Sequence[Goal], strict: bool) -> int:
    """Print PASS or MISS for each goal; the exit status: 1 for a MISS when strict."""
    for goal in goals:
        print(goal.line())
    return int(strict and not all(goal.is_met for goal in goals))
