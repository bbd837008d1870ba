"""The models of `benchmarks.architectures`, as small as they get."""

from __future__ import annotations

import mlx.core as mx
from mlx import nn

from benchmarks.architectures import NAMES, Size
from benchmarks.architectures import build as build_of

MODELS = NAMES
LAYERS, VOCABULARY = 2, 128
SIZE = Size(VOCABULARY, 64, 96, LAYERS, 4, 2)


def build(name: str, dtype: mx.Dtype = mx.float32) -> nn.Module:
    """A model with the same random weights each time."""
    return build_of(name, SIZE, dtype)
