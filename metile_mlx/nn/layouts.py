"""Who holds what in the kernels behind `metile_mlx.nn`: one table, and what chose it (SPEC B1).

On Metal the kernels keep their own choice, four striped values per thread. On a CPU a thread is a
lane of a loop; more values make fewer, longer loop bodies. Measured on two cores of a Xeon with
AVX-512 (nanoseconds of a row on one core, resident in its cache, striped values per thread; g++ 12,
clang++ 14):

              256            1009           4096             8192
    f32       4 98, 8 78     8 397, 16 308  8 3062, 16 2586  8 4374, 16 6073
    f16       4 227, 8 226   8 779, 16 709  8 3098, 16 2915  8 6695, 16 6568
    bf16      4 147, 8 136   8 501, 16 441  8 2075, 16 1839  8 4547, 16 4265
    g++ f32   4 124, 8 50    8 498, 16 602  8 3044, 16 3306  8 5829, 16 11361
    g++ f16   4 381, 8 299   8 1282, 16 6383: it does not vectorise larger bodies
    g++ bf16  4 195, 8 119   8 500, 16 2073

Adjacent values are slower: 1009 columns of f16 with 4 take 1372. `python -m benchmarks.rms_norm`
measures all of it anew.

The gradients keep four values with either compiler. A program takes four rows where there are many:
their parts of the weight's gradient are a quarter of the memory (4096 x 1009 f16: 10.7 ms instead
of 15.3 for one row; 8 rows gain no more and take a compiler twice as long).
"""

from __future__ import annotations

from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.runtime import toolchain
from metile_mlx.target import MAX_THREADS, SIMD_WIDTH

_CLANG, _OTHER = "clang", "other"
# (compiler, dtype) -> (largest block, striped values per thread), ..., the last one for all larger.
CPU_VALUES: dict[tuple[str, DType], tuple[tuple[int, int], ...]] = {
    (_CLANG, f32): ((4096, 16), (32768, 8)),
    (_CLANG, f16): ((32768, 16),),
    (_CLANG, bf16): ((32768, 16),),
    (_OTHER, f32): ((32768, 8),),
    (_OTHER, f16): ((32768, 8),),
    (_OTHER, bf16): ((32768, 8),),
}
_MANY_ROWS = 1024
_ROWS_TOGETHER = 4


def row_layout(backend: str, dtype: DType, block: int) -> ThreadLayout | None:
    """The layout in which the forward kernel holds a row.

    Args:
        backend: where it runs.
        dtype: of the row.
        block: elements of the layout, a power of two of 32 to 32768.

    Returns:
        None where the kernel's own choice is the right one.
    """
    if backend != "cpu":
        return None
    family = _CLANG if toolchain.find().is_clang else _OTHER
    wanted = next(values for most, values in CPU_VALUES[family, dtype] if block <= most)
    return ThreadLayout.identity(block, max(min(wanted, block // SIMD_WIDTH), block // MAX_THREADS))


def gradient_rows(rows: int) -> int:
    """Rows per program of the gradient kernel, which adds up their parts of a weight's gradient."""
    return _ROWS_TOGETHER if rows >= _MANY_ROWS and rows % _ROWS_TOGETHER == 0 else 1
