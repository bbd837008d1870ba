"""Thread layouts: the algebra of index bits, the public `ThreadLayout`, and its pictures."""

from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout, parse, transition

__all__ = ["AffineMap", "ThreadLayout", "parse", "transition"]
