"""`metile.nn.RMSNorm` in the place of `mlx.nn.RMSNorm` (SPEC B2)."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import mlx.core as mx
import numpy as np
import pytest
from mlx import nn, optimizers
from mlx.utils import tree_flatten

import metile_mlx as metile
from metile_mlx.runtime.export import primitives
from tests.support.public import same_bits

BACKENDS = ("cpu", "reference", pytest.param("emulator", marks=pytest.mark.emulator))

DIMS = 32


def test_same_parameters_repr_and_values() -> None:
    ours, theirs = metile.nn.RMSNorm(DIMS, 1e-6), nn.RMSNorm(DIMS, 1e-6)
    assert isinstance(ours, nn.Module)
    assert repr(ours) == repr(theirs)
    theirs.weight = mx.random.normal((DIMS,))
    ours.load_weights(tree_flatten(theirs.parameters()))
    x = mx.random.randint(-8, 9, (2, 3, DIMS)).astype(mx.float16)
    assert same_bits(ours(x), theirs(x))
    ours.set_dtype(mx.bfloat16)
    assert ours(x.astype(mx.bfloat16)).dtype == mx.bfloat16


def test_an_unknown_rounding_is_refused() -> None:
    with pytest.raises(metile.LaunchError, match="rounding is 'f64'"):
        metile.nn.RMSNorm(DIMS, rounding="f64")
    assert metile.nn.RMSNorm(DIMS, rounding="f32").rounding == "f32"


def model(norm: type[nn.Module]) -> nn.Module:
    mx.random.seed(4)
    return nn.Sequential(nn.Linear(8, DIMS), norm(DIMS), nn.relu, nn.Linear(DIMS, 1))


def losses(norm: type[nn.Module], compiled: bool, steps: int = 6) -> list[float]:
    made = model(norm)
    optimizer = optimizers.SGD(1e-2)
    x = mx.random.normal((16, 8), key=mx.random.key(1))
    y = mx.sin(x.sum(axis=1, keepdims=True))
    value_and_grad = nn.value_and_grad(made, lambda m, x, y: ((m(x) - y) ** 2).mean())
    state = [made.state, optimizer.state]

    def step(x: mx.array, y: mx.array) -> mx.array:
        loss, gradients = value_and_grad(made, x, y)
        optimizer.update(made, gradients)
        return loss

    if compiled:
        step = partial(mx.compile, inputs=state, outputs=state)(step)
    found = []
    for _ in range(steps):
        loss = step(x, y)
        mx.eval(loss, state)
        found.append(loss.item())
    return found


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_training_follows_mlxs(
    backend: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = losses(nn.RMSNorm, compiled=False)
    monkeypatch.setenv("METILE_BACKEND", backend)
    found = losses(metile.nn.RMSNorm, compiled)
    assert found[-1] < 0.9 * found[0]
    assert np.allclose(found, expected, rtol=1e-4)


def test_x2_a_model_with_it_exports() -> None:
    made = model(metile.nn.RMSNorm)
    names = primitives(lambda x: made(x), mx.zeros((4, 8)))
    assert names.count("CustomKernel") == 1
    assert "CustomTransforms" not in names


def test_the_package_does_not_import_modules_before_they_are_used() -> None:
    program = (
        "import sys, metile_mlx as m\n"
        "assert not {'metile_mlx.nn', 'metile_kernels', 'mlx.nn'} & set(sys.modules)\n"
        "assert m.nn.RMSNorm and m.rms_norm and 'metile_mlx.nn' in sys.modules\n"
        "try:\n    m.unheard_of\n"
        "except AttributeError as error:\n    assert 'unheard_of' in str(error)\n"
        "else:\n    raise SystemExit('no AttributeError')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
