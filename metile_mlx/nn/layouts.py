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

`add_rms_norm` goes through four arrays, and from memory the order of what it touches counts more.
Microseconds for 4096 rows with 16 / 32 values, one core of an EPYC with AVX-512, clang++ 14:

    columns       900         1000         1009         1016         1023         1024
    f16   1497 / 1351  1693 / 1862  2341 / 1440  1818 / 1932  2621 / 1435  1519 / 1890
    bf16  1847 / 1355  1834 / 1856  2365 / 1210  2235 / 2014  2551 / 1687  2200 / 1750

Wider rows are slower with 32 (4096 of bf16: 4.8 and 7.3 ms), and so is g++ 12, by up to a quarter;
on two cores, 1024 of bf16 are too (0.9 and 1.2 ms). So 32 it is for rows that are not whole 16
bytes. `rms_norm` has the same layout, since the norm of a sum must have its bits (F73): with 1009
columns it takes 0.77 to 0.96 of its time with 16 in f16, and 0.99 to 1.13 in bf16.

Adjacent values are no faster: 1009 columns of f16 with 4 of them take 1372. Narrow rows of f16 and
bf16 are taken several at a time, where they fill their block. Microseconds for 4096 rows by 1 / 2 /
4 / 8 a program, on two cores:

    columns                     32                    64                   128               256
    rms_norm   f16   120/ 99/ 96/ 92       245/188/166/150       264/231/210/238       679/623/661
               bf16  186/113/103/ 99       177/144/122/123       256/243/224/260       394/370/417
    layer_norm f16   314/268/178/196       427/347/278/271       785/598/561/570     1261/1182/1297
               bf16  244/218/139/136       344/265/220/226       651/554/551/679       943/928/1011
    add_rms_.. f16   253/228/211/198       383/358/320/319       787/672/597/792     1309/1263/1641
               bf16  225/169/158/140       265/258/229/211       704/639/657/797     1180/1095/1406
    rms_norm   f32    94/117/111/109       320/245/378/423       218/236/266/273       761/830/1001

Ragged ones are slower together: 127 columns of f16 300 alone, 803 by four. `python -m
benchmarks.rms_norm` measures all of it anew.

On CUDA a row is held as groups of 16 bytes, striped over the threads. One of f16 or bf16 whose
length is no multiple of them begins anywhere, and single striped elements are faster there than
guarded groups. Speed as a share of `mx.fast.rms_norm` on an H200, the least of
three runs, of which `benchmarks/results/rms_norm_h200.json` is the last:

    columns               256   1009   1024   2048   4096   8192
    f16   striped 8      1.00   3.41   0.89   0.86   0.83   0.72
          striped 32            3.66   0.93   0.89   0.91   0.90
          grouped 8      0.98   1.85   0.95   0.89   0.81   0.75
          grouped 16            2.01   0.98   0.97   0.96   0.99
          grouped 32            1.86   0.99   0.96   0.99   0.99
          4 rows, 8      2.32   1.46   0.84   0.76
          4 rows, 32            2.07   0.94   0.96   0.80   0.84
    bf16  grouped 16            1.93   0.98   0.97   0.98   0.99
          grouped 32            1.71   0.96   0.97   0.96   1.00
          4 rows, 8      2.33   1.46   0.79   0.75
    f32   striped 8      0.96   1.84   0.97   0.95   0.96   1.00
          striped 32            1.86   0.94   0.96   0.93   0.98
          grouped 8      0.95   1.89   0.94   0.96   0.93   0.99
          grouped 32            1.91   0.96   0.59   0.93   0.97
          4 rows, 8      1.19   1.62   0.92   0.97
          4 rows, 32            1.87   0.96   0.64   0.97   1.00

Kernels that loop over rows of any width have one BLOCK for all, so that a new width compiles
nothing. Microseconds for 4096 rows with BLOCK 64 / 128 / 256 / 1024 on two cores of that Xeon:

    columns                      64                         256                        1009
    softmax f32   1203/1183/1891/6776         2464/2397/2988/9468        7796/7512/7737/10764
    sum bf16        68/  83/ 129/ 546          174/ 150/ 182/ 603         617/ 530/ 555/  789

At 4096 and 32768 columns 64 to 512 are within a tenth of each other. A sum of columns with BLOCK
256 / 1024: 120 / 22 for 33 columns of bf16, 477 / 440 for 1024 and 3898 / 2291 for 4096.

The gradients keep four values. A program takes four rows where there are many: their parts of the
weight's gradient are a quarter of the memory (4096 x 1009 f16: 10.7 ms instead of 15.3 with one
row; eight rows gain no more, and take a compiler twice as long).
"""

from __future__ import annotations

from math import gcd, log2

from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import MAX_THREADS, SIMD_WIDTH

# (largest block, striped values per thread), ...
CPU_VALUES: dict[DType, tuple[tuple[int, int], ...]] = {
    f32: ((2048, 32), (4096, 16), (32768, 8)),
    f16: ((32768, 16),),
    bf16: ((32768, 16),),
}
# Of 16 bits, where a slot of all threads is to be a line of memory, up to this block: rows that are
# not whole 16 bytes.
CPU_LINE_BLOCK, CPU_LINE_VALUES = 1024, 32
# Values per thread on CUDA, in groups of 16 bytes; by the block where it matters.
CUDA_GROUPED: dict[DType, int] = {f32: 8, f16: 32, bf16: 32}
CUDA_GROUPED_AT = {(f32, 1024): 32, (f16, 2048): 16} | {
    (bf16, block): 16 for block in (1024, 2048, 4096)
}
CUDA_STRIPED = 32
_GROUP_BYTES = 16
# On a CPU: rows a program takes of f16 and bf16 where they fill their block.
CPU_ROWS = {32: 8, 64: 4, 128: 4}
# On CUDA: rows of a program, and the values of a thread. A row of 256 in 32 threads makes
# threadgroups so small that starting them is the limit.
CUDA_ROWS = {(dtype, 256): (4, 8) for dtype in CUDA_GROUPED} | {
    (f32, 2048): (4, 8),
    (f32, 4096): (4, 32),
}
_MANY_ROWS = 1024
_ROWS_TOGETHER = 4


# BLOCK of the kernels that loop over rows, and of those that loop over the rows of columns: few
# lanes have little to combine at the end of a row, many columns are read as one piece of memory.
_ROW_LANES, _CPU_ROW_LANES = 1024, 128
_COLUMN_LANES, _CPU_COLUMN_LANES = 256, 1024
# As many as MLX's own kernel takes on Metal. On a CPU sines cost more, and many rows far apart
# more again: 32 heads of 512 x 128 f32 take 1139 us by 4, 924 by 8, 851 by 16 and 1129 by 32.
_HEADS, _CPU_HEADS = 4, 16
# Elements of a program of a kernel that goes element by element.
FLAT_BLOCK = 1024
_FLAT = ThreadLayout((8, 9, *range(8)), elements_per_thread=4)


def flat_layout(backend: str) -> ThreadLayout | None:
    """Who holds which of FLAT_BLOCK elements: four neighbours a thread, one on a CPU."""
    return None if backend in ("cpu", "reference") else _FLAT


def heads_together(backend: str, heads: int) -> int:
    """Heads that a program of `rope` turns with the sines and cosines it makes once; a divisor."""
    if backend not in ("cpu", "reference"):
        return gcd(heads, _HEADS)
    some = [number for number in range(1, min(heads, _CPU_HEADS**2) + 1) if heads % number == 0]
    return min(some, key=lambda number: abs(log2(number / _CPU_HEADS)))


def row_lanes(backend: str) -> int:
    """BLOCK of a kernel that loops over a row of any width."""
    return _CPU_ROW_LANES if backend == "cpu" else _ROW_LANES


def row_blocks(backend: str) -> tuple[int, ...]:
    """Of those, which to measure: that of `row_lanes`, then others."""
    return tuple(dict.fromkeys((row_lanes(backend), 64, 128, 256, 512, 1024)))


def column_lanes(backend: str) -> int:
    """BLOCK of a kernel that goes down so many columns."""
    return _CPU_COLUMN_LANES if backend == "cpu" else _COLUMN_LANES


def row_block(columns: int) -> int:
    """The power of two, of 32 on, that holds a row."""
    return max(SIMD_WIDTH, 1 << (columns - 1).bit_length())


def row_layout(
    backend: str, dtype: DType, columns: int, block: int, in_lines: bool = False
) -> ThreadLayout | None:
    """The layout in which the forward kernel holds a row.

    Args:
        backend: where it runs.
        dtype: of the row.
        columns: of the row.
        block: elements of the layout, a power of two of 32 to 32768.
        in_lines: whether a slot of all threads is a line of memory where rows gain by that: those
            of 16 bits that are not whole 16 bytes, up to a block of 1024.

    Returns:
        None where the kernel's own choice is the right one.
    """
    if dtype not in CPU_VALUES:
        return None
    if backend == "cpu":
        wanted = next(values for most, values in CPU_VALUES[dtype] if block <= most)
        if in_lines and block <= CPU_LINE_BLOCK and _takes_lines(dtype, columns):
            wanted = CPU_LINE_VALUES
        return ThreadLayout.identity(block, _values(wanted, block))
    if backend == "cuda":
        near = _GROUP_BYTES // dtype.bytes
        if (columns % near == 0 or dtype == f32) and block // SIMD_WIDTH >= near:
            wanted = CUDA_GROUPED_AT.get((dtype, block), CUDA_GROUPED[dtype])
            return ThreadLayout.grouped(block, _values(wanted, block), near)
        return ThreadLayout.identity(block, _values(CUDA_STRIPED, block))
    return None


def _takes_lines(dtype: DType, columns: int) -> bool:
    return dtype.bytes == 2 and columns * dtype.bytes % _GROUP_BYTES != 0


def row_layouts(
    backend: str, dtype: DType, columns: int, block: int, in_lines: bool = False
) -> tuple[ThreadLayout | None, ...]:
    """Layouts to measure for a row: that of `row_layout`, then other legal ones.

    4 to 32 values of a thread, striped or in groups of 16 bytes, as far as 32 to 1024 threads
    hold the block so.
    """
    near = _GROUP_BYTES // dtype.bytes
    counts = sorted({_values(wanted, block) for wanted in (4, 8, 16, 32)})
    striped = [ThreadLayout.identity(block, values) for values in counts]
    grouped = [ThreadLayout.grouped(block, values, near) for values in counts if values >= near]
    found = (row_layout(backend, dtype, columns, block, in_lines), *striped, *grouped)
    return tuple(dict.fromkeys(found))


def rows_together(backend: str, dtype: DType, rows: int, columns: int) -> int:
    """How many rows a program of `rms_norm` takes; a divisor of `rows`."""
    if backend != "cuda":
        return narrow_rows(backend, dtype, rows, columns)
    together, _ = CUDA_ROWS.get((dtype, columns), (1, 0))
    return together if rows % together == 0 else 1


def narrow_rows(backend: str, dtype: DType, rows: int, columns: int) -> int:
    """How many rows a program of any norm takes on a CPU; a divisor of `rows`."""
    together = CPU_ROWS.get(columns, 1) if backend == "cpu" and dtype != f32 else 1
    return together if rows % together == 0 else 1


def rows_layout(backend: str, dtype: DType, rows: int, columns: int) -> ThreadLayout:
    """The layout in which the forward kernel holds several rows, which fill their blocks."""
    if backend == "cuda":
        _, values = CUDA_ROWS[dtype, columns]
        return ThreadLayout.grouped(columns, values, _GROUP_BYTES // dtype.bytes, rows)
    # The same columns of all rows in each of 32 threads.
    return ThreadLayout.identity(rows * columns, rows * columns // SIMD_WIDTH)


def _values(wanted: int, block: int) -> int:
    """Values per thread near `wanted`, for 32 to 1024 threads."""
    return max(min(wanted, block // SIMD_WIDTH), block // MAX_THREADS)


def gradient_rows(rows: int) -> int:
    """Rows per program of the gradient kernel, which adds up their parts of a weight's gradient."""
    return _ROWS_TOGETHER if rows >= _MANY_ROWS and rows % _ROWS_TOGETHER == 0 else 1
