"""Kernels written in the public language, one family per file; installed as `metile_kernels`.

Beside the kernels of a family stands what they compute, in plain MLX operations: for a kernel
`name` and its variants (`name_register`, `name_rows`, ...) a function `name_reference`. It takes
the arrays that the kernel reads, and returns what it writes, in f32 and not rounded; where data
only moves, bit for bit. A gradient kernel `name_gradient` computes MLX's gradient of it. References
are for reading and for tests, and run wherever MLX does. (The kernels of `mechanisms` are for the
selftest alone, which says itself what is expected.)

A module that has kernels says how `python -m metile_mlx selftest` checks them on any backend (one
whose name begins with an underscore has none):

    SELFTESTS = [("copy f16", selftest_copy), ...]

A pair is a name, unlike any other in the module, and a function of the backend's name. It returns a
tuple of four:

    dispatch    what `kernel[grid].prepare(..., backend=backend)` returns
    arguments   a tuple of what a call of the dispatch takes: arrays, `metile.empty`, scalars
    expected    the right outputs: one array, or a tuple of one for each output, in order
    ulps        how far a result may be off, in units in the last place of the output's dtype at the
                expected value; 0: the same bits, and then `expected` holds MLX arrays of the
                output's dtype. Otherwise NumPy arrays of float64.

It may raise `metile.UnsupportedError` for what a backend can't do yet: the check is then listed as
not run. Sizes are small: the whole of it takes seconds.
"""
