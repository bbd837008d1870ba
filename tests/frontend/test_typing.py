"""User code over the language passes mypy strict (SPEC K9)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = """\
from __future__ import annotations

import mlx.core as mx
from metile_mlx.frontend import language as metile

LAYOUT = metile.ThreadLayout.identity(64)


@metile.inline
def scale(values: metile.Tile, by: metile.Scalar | float) -> tuple[metile.Tile, metile.Tile]:
    return values * by, 2.0 * values - 1


def typed(
    source: metile.Array,
    destination: mx.array,
    n: int,
    eps: float,
    BLOCK: metile.constexpr,
    OWNER: metile.constexpr = LAYOUT,
) -> None:
    inputs = metile.tensor(source, shape=(n, BLOCK), access="read")
    outputs = metile.tensor(destination, shape=(n, BLOCK), access="write")
    row = metile.program_id(0)
    columns = metile.arange(0, BLOCK, layout=OWNER)
    values = inputs.load((row, columns), mask=columns < n, fill=0.0)
    weight = inputs.load((row, 0))
    reveal_type(values)
    reveal_type(weight)
    low, high = scale(values, by=eps)
    total = metile.where(row > n, weight, eps) + low
    reveal_type(total)
    if row < n:
        total = metile.maximum(total, -high)
    for i in range(BLOCK):
        total += metile.exp(low) * i
    size = metile.next_power_of_2(metile.cdiv(1000, 8))
    both = (columns >= 3) & ~(columns == size)
    outputs.store((row, metile.cast(total // 2, mx.int32)), total, mask=both)
"""
WRONG = (
    SAMPLE
    + """

def wrong(source: metile.Array, n: int) -> None:
    metile.tensor(source, shape=n, access="rw")
    metile.arange("0", 64)
    metile.tensor(n, shape=n)
    metile.zeros(64)
"""
)


def run_mypy(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """From the root, where a run of mypy over the package has left what it knows of it."""
    path = folder / "sample.py"
    path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", str(path)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_user_code_passes_mypy_strict_and_mistakes_do_not(tmp_path: Path) -> None:
    done = run_mypy(WRONG, tmp_path)
    # Of a text that it has seen before, mypy names the folder in which that was.
    lines = re.findall(r"^\S*/sample\.py:(\d+): error:", done.stdout, re.M)
    assert len(lines) == done.stdout.count(": error:"), done.stdout
    first_wrong = SAMPLE.count("\n") + 4
    assert [int(line) - first_wrong for line in lines] == [0, 1, 2, 3], done.stdout
    revealed = [line.split('"')[1] for line in done.stdout.splitlines() if "Revealed" in line]
    names = [name.rpartition(".")[2] for name in revealed]
    assert names == ["Tile", "Scalar", "Tile"], done.stdout
