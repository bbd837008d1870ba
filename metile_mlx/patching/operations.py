"""What a rewritten method calls: our functions, or others of the same names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from metile_mlx.patching import ours, products, rounded_once

Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Operations:
    """Functions by name. What is not there is not swapped.

    `rms_norm`, `layer_norm`, `silu` and the gelus stand for MLX's of these names; `swiglu` and the
    geglus take `gate` and `up`; `add_norm` takes two terms and a norm
    module, and returns the sum and its norm; `linear` and `addmm` take the weight in the place of
    its transpose.
    """

    functions: Mapping[str, Function]


OURS = Operations(ours.FUNCTIONS)
OURS_AND_LINEAR = Operations({**ours.FUNCTIONS, **products.FUNCTIONS})
ROUNDED_ONCE = Operations({**rounded_once.FUNCTIONS, **rounded_once.LINEAR})
