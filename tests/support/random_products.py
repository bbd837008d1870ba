"""Random kernels over matrices: loads, products, loops, sums along axes, whose results are exact.

They are texts of the language. Every value is a whole number, and clamped before it is an operand,
so that f16 and bf16 hold it and f32 every sum, in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

EDGES = (8, 16, 32, 64)
LARGEST = 9
PROGRAMS = 2
DTYPES = ("f32", "f16", "bf16")
Shape = tuple[int, int]


@dataclass(frozen=True)
class RandomProduct:
    """One kernel.

    Attributes:
        text: the function `k` with the parameters A, B, C, D, M, N, STEPS.
        dtype: of A and B, which are PROGRAMS by M by N; C and D are f32.
        extents: M and N.
        steps: how far its loops go.
        outputs: extents of C and of D.
    """

    text: str
    dtype: str
    extents: Shape
    steps: int
    outputs: tuple[Shape, Shape]

    def __repr__(self) -> str:
        about = f"dtype={self.dtype}, extents={self.extents}, steps={self.steps}"
        return f"RandomProduct({about}, outputs={self.outputs}):\n{self.text}"


@dataclass
class _Writer:
    """Lines of a kernel, and the tiles at hand: name, shape and whether it is f32."""

    draw: Callable[[st.SearchStrategy], object]  # type: ignore[type-arg]
    dtype: str
    lines: list[str] = field(default_factory=list)
    tiles: list[tuple[str, Shape]] = field(default_factory=list)
    names: int = 0
    indent: str = "    "

    def one(self, *choices: object) -> object:
        return self.draw(st.sampled_from(choices))

    def number(self, low: int, high: int) -> int:
        found = self.draw(st.integers(low, high))
        assert isinstance(found, int)
        return found

    def shape(self) -> Shape:
        rows, columns = self.one(*EDGES), self.one(*EDGES)
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        # No tile much larger than the smallest, and work for an emulator.
        return (rows, columns) if rows * columns <= 1024 else (16, columns)

    def line(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def let(self, text: str) -> str:
        self.names += 1
        self.line(f"v{self.names} = {text}")
        return f"v{self.names}"

    def f32(self, shape: Shape) -> str:
        """A tile of whole numbers in f32 of this shape: one at hand, or a new one."""
        found = [name for name, held in self.tiles if held == shape]
        if found and self.number(0, 3):
            return str(self.one(*found))
        return self.let(f"metile.cast({self.loaded(shape)}, metile.f32)")

    def loaded(self, shape: Shape, row: object = None, column: object = None) -> str:
        view = self.one("a", "b", "turned")
        first = self.number(0, 9) if row is None else row
        second = self.number(0, 9) if column is None else column
        fill = self.one("", "", ", fill=3")
        return f"metile.tile_load({view}, (batch, {first}, {second}), {shape}{fill})"

    def operand(self, shape: Shape) -> str:
        """In the dtype of the arrays: as loaded, or computed."""
        if self.number(0, 2):
            return self.let(self.loaded(shape))
        return self.let(f"metile.cast({self.f32(shape)}, metile.{self.dtype})")

    def keep(self, text: str, shape: Shape) -> None:
        self.tiles.append((self.let(f"clamp({text})"), shape))

    def pointwise(self) -> None:
        shape = self.shape() if not self.tiles else self.tiles[-1][1]
        a, b = self.f32(shape), self.one(self.f32(shape), "2.0", "-1.0")
        self.keep(f"{a} {self.one('+', '-', '*')} {b}", shape)

    def along(self) -> None:
        if self.tiles:
            name, shape = self.one(*self.tiles)  # type: ignore[misc]
            self.keep(f"{name} - metile.sum({name}, axis={self.number(0, 1)})", shape)

    def product(self) -> None:
        rows, depth = self.shape()
        columns = int(str(self.one(8, 16)))
        a, b = self.operand((rows, depth)), self.operand((depth, columns))
        start = ""
        if self.number(0, 1):
            start = f", {self.f32((rows, columns))}"
        self.keep(f"metile.dot({a}, {b}{start})", (rows, columns))

    def loop(self) -> None:
        """The sum of products that a matrix multiply is, or what a loop makes of a tile."""
        rows, depth = self.shape()
        columns = int(str(self.one(8, 16)))
        start = self.one(f"metile.zeros({(rows, columns)}, metile.f32)", "")
        total = self.let(str(start or self.f32((rows, columns))))
        self.line(f"for k in metile.tile_range({self.number(0, 3)}, STEPS, {depth}):")
        outer, known, self.indent = self.indent, list(self.tiles), self.indent + "    "
        a = self.let(self.loaded((rows, depth), column="k"))
        if not self.number(0, 2):
            a = self.let(f"{a} + {a}" if self.dtype == "f32" else f"-{a}")
        b = self.let(self.loaded((depth, columns), row="k"))
        text = f"metile.dot({a}, {b}, {total})"
        if not self.number(0, 2):
            text = f"clamp({text} + {self.f32((rows, columns))})"
        self.line(f"{total} = {text}")
        self.indent, self.tiles = outer, known
        self.keep(total, (rows, columns))

    def branch(self) -> None:
        if self.tiles:
            name, shape = self.one(*self.tiles)  # type: ignore[misc]
            made = self.let(str(name))
            self.line(f"if {self.one('STEPS > 20', 'batch == 1', 'M < N')}:")
            outer, known, self.indent = self.indent, list(self.tiles), self.indent + "    "
            b = self.operand((shape[1], shape[1]))
            a = f"metile.cast({made}, metile.{self.dtype})"
            self.line(f"{made} = clamp(metile.dot({a}, {b}))")
            self.indent, self.tiles = outer, known
            self.tiles.append((made, shape))


HEAD = """
@metile.inline
def clamp(x):
    return metile.minimum(metile.maximum(x, -9.0), 9.0)


def k(A, B, C, D, M: int, N: int, STEPS: int):
    a, b = metile.tensor(A, shape=(2, M, N)), metile.tensor(B, shape=(2, M, N))
    turned = metile.tensor(B, shape=(2, N, M), strides=(0, 1, N))
    batch = metile.program_id(0)
"""


@st.composite
def random_products(draw: Callable[..., object]) -> RandomProduct:
    """Kernels of three to six statements, the first of them a product."""
    dtype = str(draw(st.sampled_from(DTYPES)))
    writer = _Writer(draw, dtype)
    steps = [
        writer.product,
        writer.loop,
        writer.loop,
        writer.pointwise,
        writer.along,
        writer.branch,
    ]
    (writer.loop if draw(st.booleans()) else writer.product)()
    count = draw(st.integers(1, 4))
    assert isinstance(count, int)
    for _ in range(count):
        draw(st.sampled_from(steps))()  # type: ignore[operator]
    outputs = []
    for number, (name, shape) in enumerate((writer.tiles[0], writer.tiles[-1])):
        extents = tuple(max(1, edge - writer.number(0, 3)) for edge in shape)
        array = "CD"[number]
        writer.line(
            f"out{number} = metile.tensor({array}, shape=(2, {extents[0]}, {extents[1]}), "
            "access='write')"
        )
        writer.line(f"metile.tile_store(out{number}, (batch, 0, 0), {name})")
        outputs.append((extents[0], extents[1]))
    extents = (writer.number(1, 40), writer.number(1, 40))
    text = HEAD + "\n".join(writer.lines) + "\n"
    return RandomProduct(text, dtype, extents, writer.number(0, 40), (outputs[0], outputs[1]))
