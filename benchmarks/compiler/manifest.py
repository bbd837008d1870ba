"""The cases of the ownership benchmark, read from its YAML file and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from benchmarks.optional import read_yaml

PATH = Path(__file__).with_name("thread_layouts.yaml")
WIDTHS = {"f16": 16, "f32": 32}


@dataclass(frozen=True)
class Case:
    """A batched transpose: `batches` tiles of `rows` x `columns` elements."""

    dtype: str
    rows: int
    columns: int
    batches: int

    @property
    def name(self) -> str:
        return f"{self.dtype} {self.rows}x{self.columns} x {self.batches}"

    @property
    def bits(self) -> int:
        """Bits of one element."""
        return WIDTHS[self.dtype]

    @property
    def elements(self) -> int:
        """Elements of the whole batch."""
        return self.rows * self.columns * self.batches

    @property
    def bytes(self) -> int:
        """Size of the whole batch in memory."""
        return self.elements * self.bits // 8


@dataclass(frozen=True)
class Effort:
    """How long to measure: rounds, warm-up runs, and least seconds of a run."""

    rounds: int
    warmup: int
    seconds_per_run: float


@dataclass(frozen=True)
class Manifest:
    """What is measured, and how long."""

    seed: int
    cases: tuple[Case, ...]
    effort: Effort


def load(quick: bool = False, path: Path = PATH) -> Manifest:
    """Read the manifest.

    Raises:
        ValueError: a tile that is no legal thread geometry, or a dtype that isn't measured here.
    """
    content = read_yaml(path)
    mode = content["quick" if quick else "full"]
    effort = Effort(int(mode["rounds"]), int(mode["warmup"]), float(mode["seconds_per_run"]))
    cases = tuple(
        _checked(Case(dtype, rows, columns, batches // mode["batch_divisor"]))
        for dtype in content["dtypes"]
        for rows, columns in content["tiles"]
        for batches in content["batches"]
    )
    return Manifest(int(content["seed"]), cases, effort)


def _checked(case: Case) -> Case:
    size = case.rows * case.columns
    if case.dtype not in WIDTHS:
        raise ValueError(f"{case.name}: dtype must be one of {', '.join(WIDTHS)}")
    if not 32 <= size <= 1024 or any(n & (n - 1) for n in (case.rows, case.columns)):
        raise ValueError(f"{case.name}: a tile has 32 to 1024 elements, each side a power of two")
    if case.batches < 1:
        raise ValueError(f"{case.name}: there must be tiles to transpose")
    return case
