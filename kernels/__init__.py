"""Kernels written in the public language, one family per file; installed as `metile_kernels`."""
