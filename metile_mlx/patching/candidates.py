"""Which operations of which modules of a model could be swapped."""

from __future__ import annotations

from typing import Any

from metile_mlx.patching.forms import is_swapped, method_of
from metile_mlx.patching.modules import Candidate, Place, fusible_norms, places, refusal
from metile_mlx.patching.operations import Operations
from metile_mlx.patching.report import Decline
from metile_mlx.patching.rewriting import KINDS, Rewritten, rewritten
from metile_mlx.patching.source import Unreadable
from metile_mlx.runtime.optional import mx


def find(model: Any, operations: Operations) -> tuple[list[Candidate], list[Decline]]:
    """All candidates, kind by kind, and the modules that can't be read but look as if they had one.

    A residual comes after the norms, which it depends on.
    """
    candidates: list[Candidate] = []
    declines: list[Decline] = []
    read: dict[tuple[object, frozenset[str]], Rewritten | Unreadable] = {}
    for place in places(model):
        method = method_of(type(place.module))
        if is_swapped(place.module):
            declines.append(_decline(place, "any", "it is patched already"))
            continue
        norms = fusible_norms(place.module)
        if (method, norms) not in read:
            read[method, norms] = _read(method, operations, norms)
        found = read[method, norms]
        if isinstance(found, Unreadable):
            if _looks_like_a_norm(place):
                declines.append(_decline(place, "norm", f"its __call__ is not known: {found}"))
            continue
        refused = refusal(place) if found.sites else None
        if refused is not None:
            declines.append(_decline(place, "any", f"its class can't be derived from: {refused}"))
            continue
        for kind in KINDS:
            sites = tuple(site for site in found.sites if site.kind == kind)
            if sites:
                candidates.append(Candidate(place, kind, sites))
        if not found.sites and _looks_like_a_norm(place):
            declines.append(_decline(place, "norm", "its __call__ holds no operation of MLX's"))
    candidates.sort(key=lambda candidate: KINDS.index(candidate.kind))
    return candidates, declines


def _read(method: object, operations: Operations, norms: frozenset[str]) -> Rewritten | Unreadable:
    try:
        return rewritten(method, KINDS, operations, norms)
    except Unreadable as reason:
        return reason


def _looks_like_a_norm(place: Place) -> bool:
    """One vector as its weight, an epsilon, and no child."""
    module = place.module
    arrays = {key: value for key, value in module.items() if isinstance(value, mx.array)}
    has_child = any(isinstance(value, (dict, list, tuple)) for value in module.values())
    has_epsilon = any("eps" in name for name in vars(module))
    weight = arrays.get("weight")
    return has_epsilon and not has_child and weight is not None and weight.ndim == 1


def _decline(place: Place, kind: str, reason: str) -> Decline:
    return Decline(", ".join(place.paths), place.name, kind, reason)
