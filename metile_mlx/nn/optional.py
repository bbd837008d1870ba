"""`mlx.nn` and classes of it, tried once. Not in `runtime/optional.py`: only who uses them pays.

Without mlx they are a class that can't be made, so that importing still works (SPEC D, F29).
"""

from __future__ import annotations

from typing import Any

from metile_mlx.errors import BackendError
from metile_mlx.runtime.optional import Missing

mlx_nn: Any
try:
    import mlx.nn as mlx_nn
    from mlx.nn.layers.base import Module
    from mlx.nn.layers.embedding import Embedding
except ImportError as error:
    _REASON = str(error)
    mlx_nn = Missing("mlx.nn", _REASON, "pip install 'metile-mlx[cpu]'")

    class Module:  # type: ignore[no-redef]
        """Stands for mlx.nn.Module.

        Raises:
            BackendError: when one is made.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise BackendError(
                f"mlx is not installed: {_REASON}", hint="pip install 'metile-mlx[cpu]'"
            )

    Embedding = Module  # type: ignore[misc,assignment]


__all__ = ["Embedding", "Module", "mlx_nn"]
