"""`metile.patch`: operations of a model swapped for ours where they reproduce MLX (SPEC B2)."""

from __future__ import annotations

from typing import Any

from metile_mlx.errors import LaunchError
from metile_mlx.nn.optional import Module
from metile_mlx.nn.using import suspended
from metile_mlx.patching.modules import read_anew
from metile_mlx.patching.operations import OURS, OURS_AND_LINEAR
from metile_mlx.patching.report import PatchReport
from metile_mlx.patching.trial import Trial
from metile_mlx.runtime.optional import mx


def patch(model: Any, *, sample: Any, measure: bool = False, linear: bool = False) -> PatchReport:
    """Swap operations of a model for our kernels, wherever that reproduces MLX on a sample.

    Recognised, in the source of each module's `__call__`, whatever classes are called:

    - norms: calls of `mx.fast.rms_norm` (so mlx.nn.RMSNorm, Gemma's with `1.0 + weight`, and any
      other class that calls it) and `mx.fast.layer_norm`;
    - residual sums with the norm that follows, `h = x + r` and `self.norm(h)`, where the norm is a
      module that is `mx.fast.rms_norm` and nothing else;
    - gates, `silu(gate) * up` with MLX's silu or one of its gelus, written out or behind a function
      such as mlx-lm's `swiglu`; and those activations alone;
    - with `linear=True`, products with a transposed weight, `x @ w.T` and `mx.addmm(b, x, w.T)`: so
      mlx.nn.Linear, where `metile.matmul` was measured to be faster on rows like the sample's.

    All else in a method stays as it is. A method whose source is not there, or is not what runs, is
    left alone, and so is everything that no rule names. The model runs on the sample before and
    after; what does not reproduce MLX is found by bisection and left alone too. Reproducing means
    in f32 1e-5 of the largest logit and equal tokens, in f16 and bf16 the spread that MLX shows on
    this sample (`metile_mlx/patching/agreement.py` has the definition).

    Parameters, their names, flags (training, frozen) and the identity of modules with parameters
    stay; `isinstance` holds; copies and pickles have the original classes. Functions that MLX
    compiled before keep what they were compiled with, and a patched method keeps what its names
    meant when it was patched. What a run changes, such as the statistics of a BatchNorm or MLX's
    random state, is put back. While it works nothing else may use the model.

    A module that other models share, such as a norm, is swapped in all of them, checked in this
    one. Our kernels are compiled for fixed shapes: a patched model runs in mx.compile, but raises
    ValueError in mx.compile(shapeless=True), which MLX's norms take.

    Args:
        model: an mlx.nn.Module, for example an mlx-lm model; it is changed in place.
        sample: an array of tokens, or a tuple of arguments for the model. No cache: the model has
            to give the same result each time.
        measure: also time the sample with and without each kind of operation, and keep only kinds
            that don't make it slower.
        linear: also take linear layers, each kind of which is measured against MLX once; the result
            is kept in the cache folder. Rows of another number than the sample's run on MLX.

    Returns:
        What was swapped and what was not, and why; falsy when nothing was. `restore()` undoes it.

    Raises:
        LaunchError: not a module, or a sample of another type; and whatever the model itself raises
            on the sample.
    """
    if not isinstance(model, Module):
        raise LaunchError(f"[patch] model is {type(model).__name__}; expected an mlx.nn.Module")
    read_anew()
    # What it is compared with is MLX's, inside of `using` too.
    with suspended():
        operations = OURS_AND_LINEAR if linear else OURS
        return Trial(model, _arguments(sample), operations).run(measure)


def _arguments(sample: Any) -> tuple[Any, ...]:
    if isinstance(sample, mx.array):
        return (sample,)
    if isinstance(sample, tuple):
        return sample
    raise LaunchError(
        f"[patch] sample is {type(sample).__name__}; expected an array of tokens, or a tuple of "
        "arguments for the model"
    )
