"""Who holds what in the kernels behind `metile_mlx.nn`: one table, and what chose it (SPEC B1).

On Metal the kernels keep their own choice, four striped values per thread. On a CPU a thread is a
lane of a loop, and more values mean fewer passes over it. Nanoseconds of a row with 4 / 8 / 16 / 32
striped values per thread, on one core of a Xeon with AVX-512, the row in its cache (8192: clang++):

    columns          256        1009                     4096                      8192
    f32   clang++ 14  83 /  54   499 /  431 /  377 /  283  2417 / 2985 / 2623 / 2151  8: 4035
          g++ 12     138 /  47   616 /  484 /  363 /  240  3535 / 1940 / 1777 / 2090  16: 5225
    f16   clang++ 14 220 / 202   901 /  755 /  710 /  733  3317 / 3039 / 2959 / 2962  8: 6629
          g++ 12     381 / 258  1447 / 1243 / 1206 / 1278  5484 / 4930 / 4628 / 5330  16: 6655
    bf16  clang++ 14 141 / 133   615 /  506 /  463 /  439  2083 / 2008 / 1832 / 1811  8: 4381
          g++ 12     204 / 114   745 /  541 /  459 /  429  2626 / 1861 / 1824 / 1750  16: 4291

Adjacent values are no faster: 1009 columns of f16 with 4 of them take 1372. `python -m
benchmarks.rms_norm` measures all of it anew.

On CUDA a row whose length is a multiple of 16 bytes is held as groups of 16 bytes, striped over the
threads; another row begins anywhere, and single striped elements are faster there than guarded
groups. TB/s on an H200, copy 4.15 (`benchmarks/results/rms_norm_h200.json` is the whole run):

    columns               256   1009   1024   2048   4096   8192
    f16   striped 8       1.7   3.33   3.61   3.51   3.38   2.89
          striped 32            3.62   3.76   3.73   3.68   3.60
          grouped 8       1.7   1.82   3.83   3.69   3.27   3.03
          grouped 16            1.96   4.05   4.07   3.87   3.98
          grouped 32            1.84   4.02   4.06   4.05   3.99
          4 rows, 8       4.03  1.43   3.38   3.11
    f32   striped 8       3.2   3.91   3.98   3.90   3.89   3.96
          striped 32            3.92   3.98   3.87   3.87   3.90
          grouped 8       3.1   3.90   4.01   3.88   3.86   3.98
          grouped 32            3.93   4.00   2.36   3.93   3.90
          4 rows, 8       3.97  3.32   3.91   3.94
    bf16  as f16, within 4 percent

The gradients keep four values. A program takes four rows where there are many: their parts of the
weight's gradient are a quarter of the memory (4096 x 1009 f16: 10.7 ms instead of 15.3 with one
row; eight rows gain no more, and take a compiler twice as long).
"""

from __future__ import annotations

from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import MAX_THREADS, SIMD_WIDTH

# (largest block, striped values per thread), ...
CPU_VALUES: dict[DType, tuple[tuple[int, int], ...]] = {
    f32: ((2048, 32), (4096, 16), (32768, 8)),
    f16: ((32768, 16),),
    bf16: ((32768, 16),),
}
# Values per thread on CUDA, in groups of 16 bytes.
CUDA_GROUPED: dict[DType, int] = {f32: 8, f16: 32, bf16: 32}
CUDA_STRIPED = 32
_GROUP_BYTES = 16
# On a CPU: rows a program takes of f16 and bf16 where they fill their block.
CPU_ROWS = {32: 8, 64: 4, 128: 4, 256: 4}
# On CUDA: a row of 256 in 32 threads makes threadgroups so small that starting them is the limit.
CUDA_ROWS = {(f32, 256): 4, (f16, 256): 4, (bf16, 256): 4, (f32, 2048): 4}
CUDA_ROWS_VALUES = 8
_MANY_ROWS = 1024
_ROWS_TOGETHER = 4


def row_block(columns: int) -> int:
    """The power of two, of 32 on, that holds a row."""
    return max(SIMD_WIDTH, 1 << (columns - 1).bit_length())


def row_layout(backend: str, dtype: DType, columns: int, block: int) -> ThreadLayout | None:
    """The layout in which the forward kernel holds a row.

    Args:
        backend: where it runs.
        dtype: of the row.
        columns: of the row.
        block: elements of the layout, a power of two of 32 to 32768.

    Returns:
        None where the kernel's own choice is the right one.
    """
    if dtype not in CPU_VALUES:
        return None
    if backend == "cpu":
        wanted = next(values for most, values in CPU_VALUES[dtype] if block <= most)
        return ThreadLayout.identity(block, _values(wanted, block))
    if backend == "cuda":
        near = _GROUP_BYTES // dtype.bytes
        if columns % near == 0 and block // SIMD_WIDTH >= near:
            return grouped_layout(block, _values(CUDA_GROUPED[dtype], block), near)
        return ThreadLayout.identity(block, _values(CUDA_STRIPED, block))
    return None


def rows_together(backend: str, dtype: DType, rows: int, columns: int) -> int:
    """How many rows a program of the forward kernel takes; a divisor of `rows`."""
    together = 1
    if backend == "cpu" and dtype != f32:
        together = CPU_ROWS.get(columns, 1)
    elif backend == "cuda":
        together = CUDA_ROWS.get((dtype, columns), 1)
    return together if rows % together == 0 else 1


def rows_layout(backend: str, dtype: DType, rows: int, columns: int) -> ThreadLayout:
    """The layout in which the forward kernel holds several rows, which fill their blocks."""
    if backend == "cuda":
        return grouped_layout(columns, CUDA_ROWS_VALUES, _GROUP_BYTES // dtype.bytes, rows)
    # The same columns of all rows in each of 32 threads.
    return ThreadLayout.identity(rows * columns, rows * columns // SIMD_WIDTH)


def grouped_layout(block: int, values: int, near: int, rows: int = 1) -> ThreadLayout:
    """`values` elements a thread: groups of `near` neighbours, striped over a row's threads."""
    bits, many = block.bit_length() - 1, rows.bit_length() - 1
    own = (block // values).bit_length() - 1
    threads = own + many
    inner = threads + near.bit_length() - 1
    row = (*range(threads, inner), *range(own), *range(inner, bits + many))
    return ThreadLayout((*row, *range(own, threads)), elements_per_thread=values)


def _values(wanted: int, block: int) -> int:
    """Values per thread near `wanted`, for 32 to 1024 threads."""
    return max(min(wanted, block // SIMD_WIDTH), block // MAX_THREADS)


def gradient_rows(rows: int) -> int:
    """Rows per program of the gradient kernel, which adds up their parts of a weight's gradient."""
    return _ROWS_TOGETHER if rows >= _MANY_ROWS and rows % _ROWS_TOGETHER == 0 else 1
