"""What helps to see inside a kernel: printing (SPEC T)."""

from __future__ import annotations

from metile_mlx.dtypes import bool_
from metile_mlx.frontend.build import Build
from metile_mlx.frontend.language.types import MaskLike, TileLike
from metile_mlx.frontend.rules import outside, rule
from metile_mlx.frontend.values import describe
from metile_mlx.ir import tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Value


def device_print(value: TileLike, label: str | None = None, mask: MaskLike | None = None) -> None:
    """Print a value to standard error when the kernel runs, one line for each element.

    A line names the label, the program, the thread and the register slot:
    `total: program (2, 0, 0), thread 5, register 0: 1.5`. A scalar is printed once per program.
    Lines of one thread are in order, those of different threads and programs are not. Works on the
    backends cpu and emulator, the latter in its first order of threads; the reference prints
    nothing.

    Args:
        value: tile, scalar or number.
        label: a string known at compile time, in ASCII; the value's name by default.
        mask: bool, uniform or tile; None prints every element, masked loads and all.

    Raises:
        CompileError: a value, label or mask of another kind.
        UnsupportedError: compiled for Metal, which can't print.
    """
    raise outside("device_print")


@rule(device_print)
def _device_print(build: Build, value: object, label: object, mask: object) -> None:
    source = build.number(value, "value")
    if label is not None and not isinstance(label, str):
        raise build.error(f"label is {describe(label)}, expected a string", "label")
    text = label if label is not None else source.name or "value"
    if not text.isascii() or not text.isprintable():
        raise build.error(f"label is {text!a}, expected printable ASCII", "label")
    build.run(tile.Print(source, text, _mask(build, mask)))


def _mask(build: Build, mask: object) -> Value | None:
    if mask is None or mask is True:
        return None
    value = build.number(mask, "mask")
    if element(value) != bool_:
        raise build.error(
            f"mask is {element(value)}, expected bool", "mask", "compare: mask=(x != 0)"
        )
    return value
