"""Small models of mlx-lm with random weights, made in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map_with_path
from mlx_lm.models import gemma, gemma2, gemma3_text, llama, mixtral, phi, phi3, qwen2, qwen3

VOCABULARY, DIMS, HIDDEN, LAYERS = 128, 64, 96, 2
_SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": DIMS,
    "num_hidden_layers": LAYERS,
    "intermediate_size": HIDDEN,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_RMS: dict[str, Any] = {**_SHARED, "rms_norm_eps": 1e-5}


def _of(module: Any, name: str, options: dict[str, Any]) -> Callable[[], Any]:
    return lambda: module.Model(module.ModelArgs(model_type=name, **options))


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _of(llama, "llama", _RMS),
    "qwen2": _of(qwen2, "qwen2", _RMS),
    "qwen3": _of(
        qwen3,
        "qwen3",
        {
            **_RMS,
            "head_dim": 16,
            "max_position_embeddings": 256,
            "rope_theta": 1e4,
            "tie_word_embeddings": False,
        },
    ),
    "gemma": _of(gemma, "gemma", {**_RMS, "head_dim": 16}),
    "gemma2": _of(gemma2, "gemma2", {**_RMS, "head_dim": 16, "query_pre_attn_scalar": 16.0}),
    "gemma3": _of(
        gemma3_text,
        "gemma3_text",
        {
            **_RMS,
            "head_dim": 16,
            "sliding_window": 8,
            "sliding_window_pattern": 2,
            "query_pre_attn_scalar": 16.0,
        },
    ),
    "phi": _of(phi, "phi", {**_SHARED, "num_key_value_heads": 4}),
    "phi3": _of(phi3, "phi3", {**_RMS, "rope_theta": 1e4, "max_position_embeddings": 256}),
    "mixtral": _of(mixtral, "mixtral", {**_RMS, "num_local_experts": 4}),
}


def build(name: str, dtype: mx.Dtype = mx.float32, seed: int = 0) -> nn.Module:
    """A model in evaluation mode, its norms' weights random too."""
    mx.random.seed(seed)
    model = MODELS[name]()

    def spread(path: str, x: mx.array) -> mx.array:
        is_norm = x.ndim == 1 and "norm" in path
        return x + 0.1 * mx.random.normal(x.shape) if is_norm else x

    model.update(tree_map_with_path(spread, model.parameters()))
    model.set_dtype(dtype)
    model.eval()
    mx.eval(model.parameters())
    return model
