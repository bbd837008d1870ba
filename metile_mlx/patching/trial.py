"""Which swaps reproduce MLX on a sample: all of them, or what bisection leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from metile_mlx.patching import agreement, measuring, products, state
from metile_mlx.patching.candidates import find
from metile_mlx.patching.modules import Candidate, Installation
from metile_mlx.patching.operations import ROUNDED_ONCE, Operations
from metile_mlx.patching.report import Agreement, Decline, PatchReport, Swap
from metile_mlx.runtime.optional import mx

_UNUSED = "no product of its weight and rows of its dtype ran on the sample"


class Trial:
    """What of a model can be swapped for `operations`, found by running it on a sample."""

    def __init__(self, model: Any, arguments: tuple[Any, ...], operations: Operations) -> None:
        self._model = model
        self._operations = operations
        self._arguments = arguments
        self._installation = Installation()
        self._report = PatchReport()
        self._expected: list[mx.array] = []
        self._tolerances: list[float] = []

    def run(self, measure: bool = False) -> PatchReport:
        """Leaves the model with what is kept; as it was, if anything is raised."""
        with state.random_kept():
            return self._run(measure)

    def _run(self, measure: bool) -> PatchReport:
        found, self._report.declines = find(self._model, self._operations)
        candidates = self._with_norms([c for c in found if c.kind != "residual"], found)
        try:
            candidates = self._faster_layers(candidates)
            kept = self._kept(candidates) if candidates else []
            if measure and kept:
                kept = self._not_slower(kept)
            self._finish(kept)
        except BaseException:
            self._installation.take_out()
            raise
        return self._report

    def _kept(self, candidates: list[Candidate]) -> list[Candidate]:
        """Those that reproduce MLX, together."""
        self._expected = self._results()
        again = self._results()
        if not any(x.size for x in self._expected):
            return self._decline(candidates, "the model returns no numbers on the sample")
        if any(map(agreement.difference, again, self._expected)):
            return self._decline(
                candidates,
                "two runs of MLX on the sample differ; is there dropout (model.eval()), or a cache "
                "in the sample?",
            )
        self._tolerances = self._allowed(candidates)
        if not all(map(math.isfinite, self._tolerances)):
            return self._decline(
                candidates,
                "two evaluations of the sample by MLX differ without bound, so that nothing says "
                "what reproduces it; give a sample whose results are finite, or use f32",
            )
        return self._reproducing(candidates)

    def _faster_layers(self, candidates: list[Candidate]) -> list[Candidate]:
        """Without the linear layers for which ours was not faster on rows like the sample's."""
        layers = [c for c in candidates if c.kind == "linear"]
        if not layers:
            return candidates
        self._installation.put(layers, self._operations)
        with products.noted() as notes:
            self._results()
        self._installation.take_out()
        slower = []
        for candidate in layers:
            own = {id(value) for value in candidate.place.module.values()}
            found = dict.fromkeys(layer for weight, layer in notes if weight in own)
            verdicts = [products.verdict(layer) for layer in found]
            self._report.layers += [v for v in verdicts if v not in self._report.layers]
            if not any(verdict.chosen == products.OURS for verdict in verdicts):
                slower.append(candidate)
                self._decline([candidate], "; ".join(map(products.reason, verdicts)) or _UNUSED)
        return [c for c in candidates if c not in slower]

    def _reproducing(self, candidates: list[Candidate]) -> list[Candidate]:
        """What of them reproduces MLX together; it has run."""
        if self._problem(candidates) is None:
            return candidates
        kept: list[Candidate] = []
        self._bisect(kept, [c for c in candidates if c.kind != "residual"])
        self._bisect(kept, self._with_norms(kept, candidates)[len(kept) :])
        return kept

    def _with_norms(
        self, kept: Sequence[Candidate], candidates: Sequence[Candidate]
    ) -> list[Candidate]:
        """`kept`, and the residuals among the candidates whose norms are kept; declines others."""
        norms = {id(c.place.module) for c in kept if c.kind == "norm"}
        residuals = [c for c in candidates if c.kind == "residual"]
        lonely = [c for c in residuals if not {id(norm) for norm in c.norms()} <= norms]
        self._decline(lonely, "the norm of the sum is not swapped")
        return [*kept, *(c for c in residuals if c not in lonely)]

    def _allowed(self, candidates: list[Candidate]) -> list[float]:
        """The tolerance of each result; MLX is evaluated in other ways where it is f16 or bf16."""
        dtypes = [x.dtype for x in self._expected]
        spread = [0.0] * len(dtypes)
        if {mx.float16, mx.bfloat16} & set(dtypes):
            evaluations = [self._expected]
            self._installation.put(candidates, ROUNDED_ONCE)
            evaluations.append(self._results())
            self._installation.take_out()
            several = agreement.repeated(self._arguments)
            if several is not None:
                evaluations += self._first_of(several)
            spread = agreement.spread(evaluations)
        return list(map(agreement.tolerance, dtypes, spread))

    def _first_of(self, several: tuple[Any, ...]) -> list[list[mx.array]]:
        """The results for the first of equal samples, where the model takes several."""
        try:
            first = agreement.first_of(self._results(several), self._expected)
        except Exception:
            return []
        return [] if first is None else [first]

    def _bisect(self, kept: list[Candidate], more: Sequence[Candidate]) -> None:
        """Adds to `kept` what reproduces MLX beside it; declines the rest."""
        if not more:
            return
        reason = self._problem([*kept, *more])
        if reason is None:
            kept.extend(more)
        elif len(more) == 1:
            self._decline(more, reason)
        else:
            half = len(more) // 2
            self._bisect(kept, more[:half])
            self._bisect(kept, more[half:])

    def _problem(self, chosen: Sequence[Candidate]) -> str | None:
        """Why these swaps together do not reproduce MLX; None if they do."""
        try:
            self._installation.put(chosen, self._operations)
            found = self._compared()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return next((f"does not reproduce MLX: {item}" for item in found if not item.is_met), None)

    def _compared(self) -> list[Agreement]:
        return agreement.compare(self._results(), self._expected, self._tolerances)

    def _results(self, arguments: tuple[Any, ...] | None = None) -> list[mx.array]:
        """What the model returns; it holds afterwards what it held before."""
        with state.kept(self._model):
            return self._evaluated(arguments)

    def _evaluated(self, arguments: tuple[Any, ...] | None = None) -> list[mx.array]:
        self._report.runs += 1
        return agreement.results(self._model, self._arguments if arguments is None else arguments)

    def _decline(self, candidates: Sequence[Candidate], reason: str) -> list[Candidate]:
        self._report.declines += [
            Decline(", ".join(c.place.paths), c.place.name, c.kind, reason) for c in candidates
        ]
        return []

    def _not_slower(self, kept: list[Candidate]) -> list[Candidate]:
        """Without the kinds that make the sample slower; the rest has been compared again."""
        all_of_them = kept
        self._installation.take_out()
        with state.kept(self._model):
            for kind in dict.fromkeys(c.kind for c in all_of_them):
                if any(c.kind == kind for c in kept):
                    kept = self._faster(kept, kind)
            self._installation.take_out()
        if not kept or len(kept) == len(all_of_them):
            return kept
        return self._reproducing(kept)

    def _faster(self, kept: list[Candidate], kind: str) -> list[Candidate]:
        """With a kind of operation, or without it and what depends on it."""
        without = [c for c in kept if c.kind != kind]
        put = partial(self._installation.put, operations=self._operations)
        found = measuring.compare(kind, partial(put, kept), partial(put, without), self._evaluated)
        self._report.measured.append(found)
        if found.kept:
            return kept
        self._decline(
            [c for c in kept if c.kind == kind],
            f"slower: {found.with_it * 1e3:.3f} ms with it, {found.without * 1e3:.3f} ms without",
        )
        return self._with_norms([c for c in without if c.kind != "residual"], without)

    def _finish(self, kept: Sequence[Candidate]) -> None:
        """The model with what is kept, and the report of it."""
        self._installation.put(kept, self._operations)
        report = self._report
        if kept:
            report.agreement = self._compared()
            unmet = [item for item in report.agreement if not item.is_met]
            if unmet:
                self._installation.take_out()
                kept = self._decline(kept, f"did not reproduce MLX once more: {unmet[0]}")
        report.swaps = [
            Swap(", ".join(c.place.paths), c.place.name, c.kind, site.text, site.where)
            for c in kept
            for site in c.sites
        ]
        report._restore = self._installation.take_out
