"""A small transformer with our RMSNorm learns to continue a sequence, next to the same in MLX.

    python examples/rmsnorm_in_a_model.py            # or: make demo

Both models start from the same weights and see the same batches; each training step is one
`mx.compile`d function. The losses must agree; their curves are drawn to `rmsnorm_in_a_model.png`.
The trained model is then written as a graph with Metal kernels for a Mac.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial

import mlx.core as mx
from mlx import nn, optimizers

import metile_mlx as metile

try:
    from matplotlib.figure import Figure
except ImportError:
    Figure = None

VOCABULARY, LENGTH, DIMS, HEADS, BATCH = 16, 24, 64, 4, 32
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "metile.nn.RMSNorm": metile.nn.RMSNorm,
    "mlx.nn.RMSNorm": nn.RMSNorm,
}


class Block(nn.Module):
    """Attention and a small MLP, each behind a norm."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.attention = nn.MultiHeadAttention(DIMS, HEADS)
        self.attention_norm, self.mlp_norm = norm(DIMS), norm(DIMS)
        self.up, self.down = nn.Linear(DIMS, 2 * DIMS), nn.Linear(2 * DIMS, DIMS)

    def __call__(self, x: mx.array, mask: mx.array) -> mx.array:
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y, mask)
        return x + self.down(nn.silu(self.up(self.mlp_norm(x))))


class Model(nn.Module):
    """Token and position embeddings, one block, a last norm, and the next token's logits."""

    def __init__(self, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, DIMS)
        self.positions = nn.Embedding(LENGTH, DIMS)
        self.block = Block(norm)
        self.norm = norm(DIMS)
        self.head = nn.Linear(DIMS, VOCABULARY)

    def __call__(self, tokens: mx.array) -> mx.array:
        length = tokens.shape[1]
        mask = nn.MultiHeadAttention.create_additive_causal_mask(length)
        x = self.tokens(tokens) + self.positions(mx.arange(length))
        return self.head(self.norm(self.block(x, mask)))


def batch(step: int) -> mx.array:
    """Sequences in which each token is the sum of the two before it, modulo the vocabulary."""
    tokens = mx.random.randint(0, VOCABULARY, (BATCH, 2), key=mx.random.key(step))
    columns = [tokens[:, 0], tokens[:, 1]]
    for _ in range(LENGTH - 1):
        columns.append((columns[-1] + columns[-2]) % VOCABULARY)
    return mx.stack(columns, axis=1)


def train(norm: Callable[[int], nn.Module], steps: int) -> tuple[Model, list[float], float]:
    """The trained model, its losses, and the seconds of all steps but the first."""
    mx.random.seed(7)
    model = Model(norm)
    optimizer = optimizers.SGD(learning_rate=0.3)

    def loss_of(model: Model, tokens: mx.array) -> mx.array:
        return nn.losses.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:], reduction="mean")

    value_and_grad = nn.value_and_grad(model, loss_of)
    state = [model.state, optimizer.state]

    @partial(mx.compile, inputs=state, outputs=state)
    def one_step(tokens: mx.array) -> mx.array:
        loss, gradients = value_and_grad(model, tokens)
        optimizer.update(model, gradients)
        return loss

    losses, start = [], 0.0
    for step in range(steps):
        loss = one_step(batch(step))
        mx.eval(loss, state)
        losses.append(loss.item())
        if step == 0:
            start = time.perf_counter()
    return model, losses, time.perf_counter() - start


def draw(curves: dict[str, list[float]], path: str) -> str:
    """Draw the losses; says what happened."""
    if Figure is None:
        return "no curve drawn: pip install matplotlib"
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        axis.plot(losses, style, label=name, linewidth=3 if style == "-" else 1.5)
    axis.set_xlabel("step")
    axis.set_ylabel("loss")
    axis.set_ylim(bottom=0)
    axis.set_title("The same transformer with either RMSNorm")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=120)
    return f"loss curves: {path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--plot", default="rmsnorm_in_a_model.png", help="the loss curves")
    parser.add_argument("--export", default="rmsnorm_in_a_model.mlxfn", help="graph for a Mac")
    options = parser.parse_args()

    models: dict[str, Model] = {}
    curves: dict[str, list[float]] = {}
    for name, norm in NORMS.items():
        models[name], losses, seconds = train(norm, options.steps)
        curves[name] = losses
        print(f"{name:18} loss {losses[0]:.4f} -> {losses[-1]:.4f} in {seconds:.2f} s")
    ours, theirs = curves.values()
    apart = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    print(f"largest relative difference of the losses: {apart:.2e}")
    assert apart < 1e-2, "the two models learn differently"
    assert ours[-1] < 0.9 * ours[0], "the model does not learn"
    print(draw(curves, options.plot))

    trained = models["metile.nn.RMSNorm"]
    with warnings.catch_warnings():
        # Off a Mac, MLX's own operations in the file stay on its CPU: the kernels are the point.
        warnings.simplefilter("ignore", metile.ExportWarning)
        metile.export(
            options.export, lambda tokens: trained(tokens), batch(0)[:, :-1], target="metal"
        )
    print(f"wrote {options.export}: load it on a Mac with mx.import_function({options.export!r})")


if __name__ == "__main__":
    main()
