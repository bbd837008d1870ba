"""Every metal kernel of the package mlx-lm, each called at a small size beside a reference.

Nothing of the package is copied: its modules are imported as on a Mac (`emulator.patch`). The
references are its own MLX-op implementations where it has one, else NumPy in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import mlx.core as mx
import numpy as np

MODULES = (
    "mlx_lm.utils",
    "mlx_lm.kernels",
    "mlx_lm.models.gated_delta",
    "mlx_lm.models.ssm",
    "mlx_lm.models.rwkv7",
    "mlx_lm.models.kimi_k3",
    "mlx_lm.models.deepseek_v41",
    "mlx_lm.models.bitlinear_layers",
    "mlx_lm.tuner.losses",
)

Arrays = Sequence[mx.array]
Modules = dict[str, ModuleType]


@dataclass(frozen=True)
class Case:
    """One call of a kernel.

    Attributes:
        run: calls the package's function that launches the kernel.
        reference: the same values without it, as NumPy arrays or MLX arrays.
        kernels: names of the kernels it launches.
        tolerance: absolute and relative, of float32 results.
    """

    run: Callable[[Modules], Arrays]
    reference: Callable[[Modules], Sequence[Any]]
    kernels: tuple[str, ...]
    tolerance: float = 2e-5


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> mx.array:
    values = np.random.default_rng(seed + sum(shape)).standard_normal(shape) * scale
    return mx.array(values.astype(np.float32))


def f64(array: mx.array) -> np.ndarray:
    return np.array(array.astype(mx.float32)).astype(np.float64)


def gated_delta(*, vector: bool = False, masked: bool = False, dk: int = 64) -> dict[str, mx.array]:
    b, t, hk, hv, dv = 2, 3, 1, 2, 8
    gate = (b, t, hv, dk) if vector else (b, t, hv)
    arrays = {
        "q": random(b, t, hk, dk, seed=1, scale=0.1),
        "k": random(b, t, hk, dk, seed=2, scale=0.1),
        "v": random(b, t, hv, dv, seed=3),
        "g": mx.sigmoid(random(*gate, seed=4)),
        "beta": mx.sigmoid(random(b, t, hv, seed=5)),
        "state": random(b, hv, dv, dk, seed=6),
    }
    if masked:
        arrays["mask"] = mx.array([[True, False, True], [True, True, False]])
    return arrays


def _gated_delta_case(kernel: str, function: str = "gated_delta_kernel", **options: Any) -> Case:
    def reference(m: Modules) -> Sequence[Any]:
        given = gated_delta(**options)
        y, state = m["gated_delta"].gated_delta_ops(**given)
        if "mask" in given:
            # The kernel writes zeros where the mask is off, the ops leave their value.
            y = mx.where(given["mask"][..., None, None], y, mx.zeros_like(y))
        return [y, state]

    return Case(
        lambda m: getattr(m["gated_delta"], function)(**gated_delta(**options)),
        reference,
        (kernel,),
    )


def ssm() -> tuple[mx.array, ...]:
    n, h, d, groups, ds = 2, 4, 8, 2, 64
    return (
        random(n, 1, h, d, seed=1),
        random(h, seed=2, scale=0.3),
        random(n, 1, groups, ds, seed=3),
        random(n, 1, groups, ds, seed=4),
        random(h, seed=5),
        random(n, 1, h, seed=6),
        random(h, seed=7),
        random(n, h, d, ds, seed=8),
    )


def wkv7() -> tuple[mx.array, ...]:
    b, t, h, d = 1, 3, 2, 32
    r, k, v, a, b_ = (random(b, t, h, d, seed=seed, scale=0.3) for seed in range(5))
    w = mx.sigmoid(random(b, t, h, d, seed=9))
    return r, w, k, v, a, b_, random(b, h, d, d, seed=10)


def wkv7_reference(m: Modules) -> Sequence[Any]:
    r, w, k, v, a, b, state = wkv7()
    ys = []
    for t in range(r.shape[1]):
        step = (each[:, t] for each in (r, w, k, v, a, b))
        y, state = m["rwkv7"]._wkv7_step_ops(*step, state)
        ys.append(y.squeeze(-1))
    return [mx.stack(ys, axis=1), state]


def attention_residual(m: Modules, *, use_kernel: bool) -> mx.array:
    blocks = m["kimi_k3"].ResidualBlocks(1e-5)
    for seed in range(2):
        blocks.append(random(1, 3, 96, seed=seed))
    mix = m["kimi_k3"]._attn_res_mix
    return mix(blocks, random(1, 3, 96, seed=7), random(96, seed=8), 1e-5, use_kernel=use_kernel)


def sinkhorn(m: Modules) -> Arrays:
    comb = mx.softmax(random(5, 4, 4), axis=-1)
    return [m["deepseek_v41"]._sinkhorn(comb, iters=3, eps=mx.array([1e-6]))]


def sinkhorn_reference(_: Modules) -> Sequence[Any]:
    comb = f64(mx.softmax(random(5, 4, 4), axis=-1))
    comb = comb / (comb.sum(-2, keepdims=True) + 1e-6)
    for _step in range(2):
        comb = comb / (comb.sum(-1, keepdims=True) + 1e-6)
        comb = comb / (comb.sum(-2, keepdims=True) + 1e-6)
    return [comb]


def bitlinear(m: Modules, *, invert: bool) -> mx.array:
    layer = m["bitlinear_layers"].BitLinear(64, 16, bias=True, invert_weight_scales=invert)
    layer.weight = packed_weights()
    layer.weight_scale = mx.array([1.5])
    layer.bias = random(16, seed=3)
    return layer(random(3, 64))


def packed_weights() -> mx.array:
    digits = np.random.default_rng(0).integers(0, 3, (4, 4, 64))
    packed = sum(digits[i] << (2 * i) for i in range(4))
    return mx.array(np.asarray(packed).astype(np.uint8))


def bitlinear_reference(*, invert: bool) -> Callable[[Modules], Sequence[Any]]:
    def reference(_: Modules) -> Sequence[Any]:
        packed = np.array(packed_weights()).astype(np.int64)
        weight = np.concatenate([(packed >> (2 * i) & 3) - 1 for i in range(4)])
        scale = 1 / 1.5 if invert else 1.5
        return [f64(random(3, 64)) @ weight.T.astype(np.float64) * scale + f64(random(16, seed=3))]

    return reference


def losses(m: Modules, name: str, *, vocabulary: int, backward: bool) -> Arrays:
    q, p = random(2, vocabulary, seed=1), random(2, vocabulary, seed=2)
    function = getattr(m["losses"], name)
    if not backward:
        return [function(q, p)]
    weights = mx.array([0.5, 2.0])
    gradient = mx.grad(lambda given: (function(given, p) * weights).sum())(q)
    return [gradient]


def divergence(q: mx.array, p: mx.array, name: str) -> mx.array:
    """KL or Jensen-Shannon of softmaxes, without a kernel."""
    log_q = q - mx.logsumexp(q, axis=-1, keepdims=True)
    log_p = p - mx.logsumexp(p, axis=-1, keepdims=True)
    if name == "kl_div_loss":
        return (mx.exp(log_p) * (log_p - log_q)).sum(-1)
    log_m = mx.logaddexp(log_p, log_q) - np.log(2)
    parts = mx.exp(log_p) * (log_p - log_m) + mx.exp(log_q) * (log_q - log_m)
    return 0.5 * parts.sum(-1)


def losses_reference(name: str, *, vocabulary: int, backward: bool) -> Sequence[Any]:
    q, p = random(2, vocabulary, seed=1), random(2, vocabulary, seed=2)
    if not backward:
        return [divergence(q, p, name)]
    weights = mx.array([0.5, 2.0])
    return [mx.grad(lambda given: (divergence(given, p, name) * weights).sum())(q)]


def _loss_case(name: str, kernels: tuple[str, ...], *, vocabulary: int, backward: bool) -> Case:
    options: dict[str, Any] = {"vocabulary": vocabulary, "backward": backward}
    return Case(
        lambda m: losses(m, name, **options),
        lambda m: losses_reference(name, **options),
        kernels,
    )


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps)


HEADS: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "head_dim": 48, "eps": 1e-5}
QKVG = (2, 3, 2 * (4 + 2) * 48)


def qk_reference(_: Modules) -> Sequence[Any]:
    rows = f64(random(*QKVG)).reshape(2, 3, 12, 48)
    return [rms(rows[:, :, :4], 1e-5) * 0.25, rms(rows[:, :, 4:6], 1e-5)]


def qk_rope_reference(m: Modules) -> Sequence[Any]:
    out = []
    for part in qk_reference(m):
        x = mx.array(part.astype(np.float32)).swapaxes(1, 2)
        x = mx.fast.rope(x, 48, traditional=True, base=10000.0, scale=1.0, offset=mx.array([5, 9]))
        out.append(x.swapaxes(1, 2))
    return out


def routing(m: Modules) -> Arrays:
    return m["kernels"].expert_routing(
        random(5, 40),
        random(40, seed=1, scale=0.1),
        top_k=4,
        multiplier=1.5,
        score_eps=1e-6,
        route_scale=2.0,
    )


def routing_reference(_: Modules) -> Sequence[Any]:
    scores = 1 / (1 + np.exp(-f64(random(5, 40)) * 1.5))
    chosen = np.argsort(-(scores + f64(random(40, seed=1, scale=0.1))), axis=-1)[:, :4]
    weights = np.take_along_axis(scores, chosen, -1)
    return [chosen, weights / (weights.sum(-1, keepdims=True) + 1e-6) * 2.0]


COMBINE = (3, 2, 600)


def combine_reference(_: Modules) -> Sequence[Any]:
    x = f64(random(*COMBINE)) * f64(random(COMBINE[-1], seed=1))
    return [(rms(x, 1e-5) * f64(random(3, 2, seed=2))[..., None]).sum(1)]


@dataclass(frozen=True)
class Norm:
    """What `norm_add_norm` reads of a module of `mlx.nn`."""

    weight: mx.array
    eps: float


ROWS, DIM = 3, 600


def norm_add(m: Modules, *, post: bool, following: bool) -> Arrays:
    stream, normed = m["kernels"].norm_add_norm(
        random(ROWS, DIM, seed=1),
        random(ROWS, DIM, seed=2),
        alpha=random(DIM, seed=3),
        beta=random(DIM, seed=4),
        post_weight=random(DIM, seed=5) if post else None,
        post_eps=1e-5,
        next_norm=Norm(random(DIM, seed=6), 1e-5) if following else None,
    )
    return [stream] if normed is None else [stream, normed]


def norm_add_reference(*, post: bool, following: bool) -> Callable[[Modules], Sequence[Any]]:
    def reference(_: Modules) -> Sequence[Any]:
        branch = f64(random(ROWS, DIM, seed=1))
        if post:
            branch = branch * f64(random(DIM, seed=5))
        stream = f64(random(DIM, seed=3)) * f64(random(ROWS, DIM, seed=2))
        stream = stream + f64(random(DIM, seed=4)) * rms(branch, 1e-5)
        normed = rms(stream, 1e-5) * f64(random(DIM, seed=6))
        return [stream, normed] if following else [stream]

    return reference


def gate(m: Modules) -> Arrays:
    x = random(2, 3, 4, 40).swapaxes(1, 2)
    return [m["kernels"].rms_norm_sigmoid_gate(x, random(2, 3, 160, seed=1), eps=1e-5)]


def gate_reference(_: Modules) -> Sequence[Any]:
    x = rms(f64(random(2, 3, 4, 40)), 1e-5).reshape(2, 3, 160)
    return [x / (1 + np.exp(-f64(random(2, 3, 160, seed=1))))]


CASES: dict[str, Case] = {
    "gated delta": _gated_delta_case("gated_delta_step"),
    "gated delta masked": _gated_delta_case("gated_delta_step_mask", masked=True),
    "gated delta vector": _gated_delta_case("gated_delta_step_vec", vector=True),
    "gated delta vector masked": _gated_delta_case(
        "gated_delta_step_vec_mask", vector=True, masked=True
    ),
    "gated delta packed": _gated_delta_case("gated_delta_step_packed_btree", dk=128),
    "gated delta explicit tree": _gated_delta_case(
        "gated_delta_step_xtree", "gated_delta_kernel_xtree", dk=128
    ),
    "ssm": Case(
        lambda m: m["ssm"].ssm_update(*ssm()),
        lambda m: m["ssm"].ssm_attn(*ssm()),
        ("ssm_kernel",),
        1e-4,
    ),
    "rwkv 7": Case(lambda m: m["rwkv7"].wkv7_kernel(*wkv7()), wkv7_reference, ("wkv7_kernel",)),
    "attention residual": Case(
        lambda m: [attention_residual(m, use_kernel=True)],
        lambda m: [attention_residual(m, use_kernel=False)],
        ("attnres_mix",),
    ),
    "sinkhorn": Case(sinkhorn, sinkhorn_reference, ("deepseek_v41_sinkhorn",)),
    "bitlinear": Case(
        lambda m: [bitlinear(m, invert=False)],
        bitlinear_reference(invert=False),
        ("bitlinear_matmul",),
    ),
    "bitlinear inverted": Case(
        lambda m: [bitlinear(m, invert=True)],
        bitlinear_reference(invert=True),
        ("bitlinear_matmul",),
    ),
    "kl loss": _loss_case("kl_div_loss", ("kl_forward",), vocabulary=4100, backward=False),
    "kl gradient": _loss_case("kl_div_loss", ("kl_backward",), vocabulary=4100, backward=True),
    "js loss": _loss_case("js_div_loss", ("js_forward",), vocabulary=4100, backward=False),
    "js gradient": _loss_case("js_div_loss", ("js_backward",), vocabulary=4100, backward=True),
    "qk norm": Case(
        lambda m: m["kernels"].qk_norm(random(*QKVG), query_scale=0.25, **HEADS),
        qk_reference,
        ("qk_norm",),
    ),
    "qk norm rope": Case(
        lambda m: m["kernels"].qk_norm_rope(
            random(*QKVG), query_scale=0.25, rope_base=10000.0, offset=mx.array([5, 9]), **HEADS
        ),
        qk_rope_reference,
        ("qk_norm_rope",),
    ),
    "expert routing": Case(routing, routing_reference, ("expert_routing",)),
    "expert combine": Case(
        lambda m: [
            m["kernels"].post_expert_norm_combine(
                random(*COMBINE),
                random(3, 2, seed=2),
                norm_weight=random(COMBINE[-1], seed=1),
                eps=1e-5,
            )
        ],
        combine_reference,
        ("post_expert_norm_combine",),
    ),
    "norm add": Case(
        lambda m: norm_add(m, post=True, following=False),
        norm_add_reference(post=True, following=False),
        ("norm_add",),
    ),
    "norm add norm": Case(
        lambda m: norm_add(m, post=False, following=True),
        norm_add_reference(post=False, following=True),
        ("norm_add_norm",),
    ),
    "pre norm": Case(
        lambda m: [
            m["kernels"].pre_norm(
                random(ROWS, DIM, seed=2), Norm(random(DIM, seed=6), 1e-5), dtype=mx.float32
            )
        ],
        lambda _: [rms(f64(random(ROWS, DIM, seed=2)), 1e-5) * f64(random(DIM, seed=6))],
        ("norm_add_norm_pre_norm",),
    ),
    "norm and gate": Case(gate, gate_reference, ("rms_norm_sigmoid_gate",)),
}
