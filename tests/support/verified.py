"""Planted faults: verifiers reject them, by default or only when asked in full."""

from __future__ import annotations

import pytest

from metile_mlx.context import Context, Stage
from metile_mlx.errors import VerificationError
from metile_mlx.ir.core import Func
from metile_mlx.target import METAL, Target
from metile_mlx.verify import verify


def rejected(
    func: Func,
    stage: Stage,
    before: Func | None = None,
    target: Target = METAL,
    by_default: bool = True,
) -> VerificationError:
    """The error of a faulty program; `by_default`: METILE_VERIFY=full is not needed for it."""
    with pytest.raises(VerificationError) as caught:
        verify(func, stage, Context(target), before)
    if not by_default:
        verify(func, stage, Context(target), before, full=False)
        return caught.value
    with pytest.raises(VerificationError) as default:
        verify(func, stage, Context(target), before, full=False)
    assert default.value.message == caught.value.message
    return caught.value
