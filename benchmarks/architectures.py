"""Models of mlx-lm with random weights, made in memory: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map_with_path

from benchmarks.optional import mlx_lm_model


@dataclass(frozen=True)
class Size:
    """The sizes that all models have, by the names of mlx-lm's arguments."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int

    @property
    def head(self) -> int:
        """Values of one attention head."""
        return self.hidden_size // self.num_attention_heads


def _more(size: Size) -> dict[str, dict[str, Any]]:
    """Arguments by the name of the model's module in mlx-lm, besides the sizes."""
    rms = {"rms_norm_eps": 1e-5}
    long = {"rope_theta": 1e4, "max_position_embeddings": 4096}
    head = {"head_dim": size.head}
    scaled = {**head, "query_pre_attn_scalar": float(size.head)}
    return {
        "llama": rms,
        "qwen2": rms,
        "qwen3": {**rms, **long, **head, "tie_word_embeddings": False},
        "gemma": {**rms, **head},
        "gemma2": {**rms, **scaled},
        "gemma3_text": {**rms, **scaled, "sliding_window": 8, "sliding_window_pattern": 2},
        # MLX turns an even number of a head's values only; 0.4 of 64 are 25.
        "phi": {"num_key_value_heads": size.num_attention_heads, "partial_rotary_factor": 0.5},
        "phi3": {**rms, **long},
        "mixtral": {**rms, "num_local_experts": 4},
    }


NAMES = tuple(_more(Size(1, 1, 1, 1, 1, 1)))


def build(name: str, size: Size, dtype: mx.Dtype, seed: int = 0) -> nn.Module:
    """A model in evaluation mode; the weights of its norms are random too.

    Args:
        name: of NAMES.
        size: of the model.
        dtype: of all parameters.
        seed: the same weights for the same one.

    Raises:
        RuntimeError: mlx-lm is not installed.
    """
    mx.random.seed(seed)
    module = mlx_lm_model(name)
    make: Callable[..., Any] = module.ModelArgs
    model: nn.Module = module.Model(make(model_type=name, **{**asdict(size), **_more(size)[name]}))

    def spread(path: str, x: mx.array) -> mx.array:
        is_norm = x.ndim == 1 and "norm" in path
        return x + 0.1 * mx.random.normal(x.shape) if is_norm else x

    model.update(tree_map_with_path(spread, model.parameters()))
    model.set_dtype(dtype)
    model.eval()
    mx.eval(model.parameters())
    return model
