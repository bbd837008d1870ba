"""Layouts of rows that are measured where they are first met (SPEC B1, K8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest
from mlx import nn

import metile_mlx as metile
from metile_kernels.cross_entropy import cross_entropy
from metile_kernels.layernorm import layernorm_register
from metile_kernels.rmsnorm import rmsnorm_register
from metile_kernels.softmax import softmax
from metile_mlx import config
from metile_mlx.autotune import Autotuned
from metile_mlx.dtypes import bf16, f32
from metile_mlx.nn import row_kernels
from metile_mlx.nn.cross_entropy import CrossEntropy
from metile_mlx.nn.layer_norm import LayerNormRows
from metile_mlx.nn.layouts import row_blocks, row_lanes, row_layout, row_layouts
from metile_mlx.nn.rms_norm import RmsNorm
from metile_mlx.nn.softmax import Softmax
from tests.support.functions import normal

EPS = 1e-5
COLUMNS = 128
BLOCKS = (128, 64)


@pytest.fixture
def tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("METILE_AUTOTUNE", "1")
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path))
    # Other blocks would each be compiled.
    monkeypatch.setattr(row_kernels, "row_blocks", lambda _: BLOCKS)
    families = (RmsNorm, LayerNormRows, Softmax, CrossEntropy)
    for family in families:
        family._kept.clear()
    row_kernels._tuned.cache_clear()
    yield
    for family in families:
        family._kept.clear()
    row_kernels._tuned.cache_clear()


def tuned() -> Autotuned:
    return row_kernels._tuned(rmsnorm_register, "LAYOUT", row_layouts("cpu", f32, COLUMNS, COLUMNS))


def test_rows_are_measured_once_and_come_out_the_same(tuning: None) -> None:
    x, w = mx.random.normal((64, COLUMNS)), mx.random.normal((COLUMNS,))
    with mx.stream(mx.cpu):
        metile.rms_norm(x[:63], w, EPS)
        assert tuned().reports == ()
        made = metile.rms_norm(x, w, EPS)
        assert mx.allclose(made, mx.fast.rms_norm(x, w, EPS), atol=1e-5)
        (report,) = tuned().reports
        assert report.how.startswith("the fastest of 2")
        for rows in (1, 63, 64, 65, 100):
            more = mx.random.normal((rows, COLUMNS))
            again = metile.rms_norm(more, w, EPS)
            assert mx.allclose(again, mx.fast.rms_norm(more, w, EPS), atol=1e-5)
        assert tuned().reports == (report,)
        gradient = mx.grad(lambda x: metile.rms_norm(x, w, EPS).sum())(x)
        expected = mx.grad(lambda x: mx.fast.rms_norm(x, w, EPS).sum())(x)
        assert mx.allclose(gradient, expected, atol=1e-5)


def test_layer_norms_are_measured_too_and_keep_their_gradient(tuning: None) -> None:
    x, b = normal((64, COLUMNS)), normal((COLUMNS,), seed=1)
    with mx.stream(mx.cpu):
        made = metile.layer_norm(x, None, b, EPS)
        assert mx.allclose(made, mx.fast.layer_norm(x, None, b, EPS), atol=1e-5)
        layouts = row_layouts("cpu", f32, COLUMNS, COLUMNS)
        (report,) = row_kernels._tuned(layernorm_register, "LAYOUT", layouts).reports
        assert report.how.startswith("the fastest of 2")
        slopes = [
            mx.grad(lambda b, of=of: (of(x, None, b, EPS) ** 2).sum())(b)
            for of in (metile.layer_norm, mx.fast.layer_norm)
        ]
        assert mx.allclose(*slopes, rtol=1e-4, atol=1e-4)


def test_blocks_of_rows_of_any_width_are_measured_once_for_a_width(tuning: None) -> None:
    targets = mx.arange(64)
    functions = {
        softmax: (metile.softmax, lambda x: mx.softmax(x, axis=-1)),
        cross_entropy: (
            lambda x: metile.cross_entropy(x, targets[: x.shape[0]]),
            lambda x: nn.losses.cross_entropy(x, targets[: x.shape[0]]),
        ),
    }
    with mx.stream(mx.cpu):
        for kernel, (ours, theirs) in functions.items():
            for rows, width in ((63, 300), (64, 300), (64, 301), (64, 300)):
                x = normal((rows, width), seed=width)
                assert mx.allclose(ours(x), theirs(x), atol=1e-5)
            slopes = [mx.grad(lambda x, of=of: (of(x) ** 2).sum())(x) for of in (ours, theirs)]
            assert mx.allclose(*slopes, rtol=1e-4, atol=1e-5)
            reports = row_kernels._tuned(kernel, "BLOCK", BLOCKS, ("width",)).reports
            assert [report.how[:16] for report in reports] == ["the fastest of 2"] * 2


def test_a_traced_call_measures_nothing_and_the_next_one_can(tuning: None) -> None:
    x, w = mx.random.normal((64, COLUMNS)), mx.random.normal((COLUMNS,))
    with mx.stream(mx.cpu):
        made = mx.compile(lambda x: metile.rms_norm(x, w, EPS))(x)
        assert mx.allclose(made, mx.fast.rms_norm(x, w, EPS), atol=1e-5)
        assert "nothing was measured" in tuned().reports[0].how
        metile.rms_norm(x, w, EPS)
        assert tuned().reports[0].how.startswith("the fastest of 2")


def test_the_table_comes_first_and_all_are_legal() -> None:
    for backend in ("cpu", "cuda", "metal"):
        for bit in range(5, 16):
            found = row_layouts(backend, f32, 1 << bit, 1 << bit)
            assert found[0] == row_layout(backend, f32, 1 << bit, 1 << bit)
            more = row_layouts(backend, bf16, 1 << bit, 1 << bit, in_lines=True)
            assert more[0] == row_layout(backend, bf16, 1 << bit, 1 << bit, in_lines=True)
            assert len(set(more)) == len(more)
            assert all(held is None or held.size == 1 << bit for held in found)
            assert len(set(found)) == len(found) <= 10
        blocks = row_blocks(backend)
        assert blocks[0] == row_lanes(backend)
        assert len(set(blocks)) == len(blocks)


def test_another_value_of_the_variable_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METILE_AUTOTUNE", "yes")
    with pytest.raises(metile.MetileError, match="METILE_AUTOTUNE='yes'; expected 0 or 1"):
        config.autotune()
