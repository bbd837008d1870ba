"""Measurements of metile_mlx, each a module to run: see docs/benchmarks.md."""
