"""Whether a model with swaps reproduces MLX on a sample, and what MLX itself reproduces.

Arrays are compared row by row, a row being the last axis: the largest difference, as a share of the
largest magnitude that MLX has in the row. In f32 it may be 1e-5, and the largest value of every row
(the token, where rows are logits) has to be in the same place.

In f16 and bf16 it may be as much as MLX differs from itself on this sample: the largest among

- the model as written,
- the model with every candidate operation computed by MLX in f32 and rounded once, at the end
  (`ROUNDED_ONCE`), where MLX rounds after each step,
- the sample repeated three times along its first axis, where all results have that axis,

any two of them; but at least the distance of two neighbouring numbers of the dtype, its eps. The
token must be the same wherever MLX sees it ahead of the next by more than that. All results are
compared for the tokens of the sample (teacher forcing), so that one differing token changes no
other. Integers must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metile_mlx.patching.report import Agreement
from metile_mlx.runtime.optional import mx

F32_TOLERANCE = 1e-5
REPEATS = 3


def arrays_in(value: Any) -> list[mx.array]:
    """The arrays in lists, tuples and dicts, in order."""
    if isinstance(value, mx.array):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    if isinstance(value, (list, tuple, dict)):
        return [array for item in items for array in arrays_in(item)]
    return []


def results(model: Any, arguments: Sequence[Any]) -> list[mx.array]:
    """What the model returns, evaluated."""
    made = arrays_in(model(*arguments))
    mx.eval(made)
    return made


def repeated(arguments: Sequence[Any]) -> tuple[Any, ...] | None:
    """A sample of one array, several times; None for any other."""
    if len(arguments) != 1 or not isinstance(arguments[0], mx.array) or arguments[0].ndim < 2:
        return None
    return (mx.concatenate([arguments[0]] * REPEATS),)


def first_of(repeats: Sequence[mx.array], like: Sequence[mx.array]) -> list[mx.array] | None:
    """The results of the first of several equal samples; None if they have no such axis."""
    if len(repeats) != len(like):
        return None
    for made, one in zip(repeats, like, strict=True):
        if one.ndim == 0 or made.shape != (REPEATS * one.shape[0], *one.shape[1:]):
            return None
    return [made[: one.shape[0]] for made, one in zip(repeats, like, strict=True)]


def difference(ours: mx.array, theirs: mx.array) -> float:
    """The largest difference, as a share of the largest magnitude of its row in `theirs`.

    Infinite where shapes, dtypes or places of what is not finite differ, and for other integers.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return float("inf")
    if theirs.size == 0:
        return 0.0
    if not mx.issubdtype(theirs.dtype, mx.floating):
        return 0.0 if mx.array_equal(ours, theirs).item() else float("inf")
    a, b = (_rows(x) for x in (ours, theirs))
    same = (a == b) | (mx.isnan(a) & mx.isnan(b))
    apart = mx.where(same, 0, mx.abs(a - b) / _largest(b)[:, None])
    worst = mx.max(mx.where(mx.isnan(apart), float("inf"), apart))
    value: Any = worst.item()
    return float(value)


def spread(evaluations: Sequence[Sequence[mx.array]]) -> list[float]:
    """For each result, the largest difference between any two evaluations by MLX."""
    pairs = [(a, b) for i, a in enumerate(evaluations) for b in evaluations[:i]]
    count = len(evaluations[0])
    return [max((difference(a[k], b[k]) for a, b in pairs), default=0.0) for k in range(count)]


def tolerance(dtype: mx.Dtype, mlx_spread: float) -> float:
    """What the difference may be."""
    if dtype == mx.float32 or not mx.issubdtype(dtype, mx.floating):
        return F32_TOLERANCE if dtype == mx.float32 else 0.0
    return max(mlx_spread, float(mx.finfo(dtype).eps))


def compare(
    ours: Sequence[mx.array], theirs: Sequence[mx.array], tolerances: Sequence[float]
) -> list[Agreement]:
    """One verdict for each array that MLX's model returns.

    Raises:
        ValueError: another number of arrays.
    """
    return [_compare(*each) for each in zip(ours, theirs, tolerances, strict=True)]


def _compare(ours: mx.array, theirs: mx.array, allowed: float) -> Agreement:
    dtype = str(theirs.dtype).rpartition(".")[2]
    apart = difference(ours, theirs)
    tokens = equal = close = 0
    is_logits = mx.issubdtype(theirs.dtype, mx.floating) and theirs.ndim > 0
    if is_logits and theirs.shape[-1] > 1 and ours.shape == theirs.shape and theirs.size:
        rows = _rows(theirs)
        two = mx.topk(rows, 2, axis=-1)
        lead = mx.abs(two[..., 0] - two[..., 1]) / _largest(rows)
        is_clear = lead > (-1 if theirs.dtype == mx.float32 else allowed)
        same = mx.argmax(_rows(ours), axis=-1) == mx.argmax(rows, axis=-1)
        tokens, equal = (_count(mask) for mask in (is_clear, same & is_clear))
        close = lead.size - tokens
    return Agreement(dtype, theirs.size, apart, allowed, tokens, equal, close)


def _count(mask: mx.array) -> int:
    value: Any = mx.sum(mask).item()
    return int(value)


def _largest(rows: mx.array) -> mx.array:
    """The largest finite magnitude of each row."""
    return mx.max(mx.where(mx.isfinite(rows), mx.abs(rows), 0), axis=-1)


def _rows(x: mx.array) -> mx.array:
    """(rows, N) in f32."""
    return x.reshape(-1, x.shape[-1] if x.ndim else 1).astype(mx.float32)
