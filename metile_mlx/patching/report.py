"""What `patch` did to a model, and what it left alone (SPEC B2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from metile_mlx.tuning import TuningReport


@dataclass(frozen=True)
class Swap:
    """An operation of a module that runs on our kernels now.

    Attributes:
        path: of the module in the model, all of them where it is used several times.
        module: the name of its class.
        kind: norm, gate, activation, linear or residual.
        text: what the module's method says there.
        where: `file.py:line`.
    """

    path: str
    module: str
    kind: str
    text: str
    where: str


@dataclass(frozen=True)
class Decline:
    """A module, or one kind of operation in it, that was left as it is."""

    path: str
    module: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Agreement:
    """One array that the model returns, with and without the swaps.

    Attributes:
        dtype: of the array.
        values: how many were compared.
        difference: the largest, as a share of the largest magnitude in its row.
        tolerance: what `difference` may be.
        tokens: rows whose largest value MLX sees ahead of the next by more than `tolerance`, of the
            same magnitude; in f32 all rows.
        tokens_equal: how many of them have their largest value in the same place.
        tokens_close: the other rows.
    """

    dtype: str
    values: int
    difference: float
    tolerance: float
    tokens: int
    tokens_equal: int
    tokens_close: int

    @property
    def is_met(self) -> bool:
        """Whether this reproduces MLX. False where the difference is not a number."""
        return self.difference <= self.tolerance and self.tokens == self.tokens_equal

    def __str__(self) -> str:
        tokens = f", {self.tokens_equal} of {self.tokens} tokens equal" if self.tokens else ""
        close = f" ({self.tokens_close} too close to tell)" if self.tokens_close else ""
        return (
            f"{self.dtype}: difference {self.difference:.2e} of {self.tolerance:.2e} allowed"
            f"{tokens}{close}"
        )


@dataclass(frozen=True)
class Measured:
    """Seconds of the sample with and without one kind of operation swapped, medians."""

    kind: str
    with_it: float
    without: float
    kept: bool


@dataclass
class PatchReport:
    """The result of `metile.patch`. Falsy when nothing was swapped.

    Attributes:
        swaps: what runs on our kernels.
        declines: what was recognised, or looked like it, and was left alone, each with its reason.
        agreement: for each array that the model returns on the sample, with all swaps.
        measured: what `measure=True` found.
        layers: what `linear=True` found: for each kind of linear layer in the sample, the time of
            ours and of MLX.
        runs: how often the model was run to find out.
    """

    swaps: list[Swap] = field(default_factory=list)
    declines: list[Decline] = field(default_factory=list)
    agreement: list[Agreement] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    layers: list[TuningReport] = field(default_factory=list)
    runs: int = 0
    _restore: Callable[[], None] | None = field(default=None, repr=False, compare=False)

    def __bool__(self) -> bool:
        return bool(self.swaps)

    def restore(self) -> None:
        """Puts the model's own classes and modules back. Again does nothing."""
        if self._restore is not None:
            self._restore()
            self._restore = None

    def to_dict(self) -> dict[str, object]:
        """Plain lists, dicts, strings and numbers; `json.dumps` takes it as it is."""
        return {
            "swapped": bool(self),
            "swaps": [asdict(swap) for swap in self.swaps],
            "declines": [asdict(decline) for decline in self.declines],
            "agreement": [{**asdict(item), "met": item.is_met} for item in self.agreement],
            "measured": [asdict(item) for item in self.measured],
            "layers": [item.to_dict() for item in self.layers],
            "runs": self.runs,
        }

    def __str__(self) -> str:
        lines = [f"{len(self.swaps)} swaps, {len(self.declines)} declines, {self.runs} runs"]
        if self.swaps:
            lines += ["swapped:", *_table([[s.kind, s.path, s.where, s.text] for s in self.swaps])]
        if self.declines:
            rows = [[d.kind, d.path, d.module, d.reason] for d in self.declines]
            lines += ["left alone:", *_table(rows)]
        if self.agreement:
            lines += ["against MLX on the sample:", *(f"  {item}" for item in self.agreement)]
        if self.measured:
            lines += ["measured:"]
            lines += [
                f"  {m.kind}: {m.with_it * 1e3:.3f} ms with, {m.without * 1e3:.3f} ms without, "
                + ("kept" if m.kept else "dropped")
                for m in self.measured
            ]
        if self.layers:
            lines += ["linear layers:", *(f"  {line}" for v in self.layers for line in _timed(v))]
        return "\n".join(lines)


def _timed(found: TuningReport) -> list[str]:
    times = ", ".join(
        f"{c.config} " + (c.left_out if c.seconds is None else f"{c.seconds * 1e3:.3f} ms")
        for c in found.candidates
    )
    return [f"{found.key['layer']}: {times}; {found.chosen} runs"]


def _table(rows: list[list[str]]) -> list[str]:
    """Indented lines with columns of equal width; what repeats but for the path is one line."""
    kept: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        kept.setdefault((row[0], *row[2:]), []).extend(row[1].split(", "))
    cells = [
        [key[0], paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more", *key[1:]]
        for key, paths in kept.items()
    ]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    return [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
