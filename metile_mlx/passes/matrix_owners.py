"""Owners in kernels with matrix products: whoever needs a tile says how its elements lie (SPEC P1).

Tiles that meet in an operation have one owner, so they form classes. A class that a product
accumulates in has the layout of its fragments; the epilogue is in it, and works on what each thread
holds. The operands of a product need layouts of their own:

- staging="device": a class of loads and arithmetic that one side of products needs has that
  side's layout. Each simdgroup loads its fragments itself.
- staging="threadgroup": all threads load such a class together, neighbours of memory in each, and a
  conversion hands it to the simdgroups through threadgroup memory.

A CPU's threads are loops over arrays: there each tile lies in order, and products read all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from metile_mlx.context import Context
from metile_mlx.errors import CompileError, LayoutError, OwnershipError, UnsupportedError
from metile_mlx.ir.core import Effect, Func, Op, Value, definitions, walk
from metile_mlx.ir.lanes import DECLARED
from metile_mlx.ir.loops import For
from metile_mlx.ir.matrix import Dot
from metile_mlx.ir.tile import Constant, If, Load, Reduce, Tensor
from metile_mlx.ir.types import TileType
from metile_mlx.layout.fragments import MAX_REGISTERS, Product, copy_layout, products
from metile_mlx.layout.operand import Layout
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import MAX_THREADS, MAX_TILE, SIMD_WIDTH

_VECTOR = (
    "a vector beside matrices is a view with a stride of 0: metile.tensor(bias, shape=(M, N), "
    "strides=(0, 1)), loaded with tile_load"
)


@dataclass(frozen=True)
class MatrixOwners:
    """What `assign` has decided.

    Attributes:
        threads: of a threadgroup.
        layouts: of every tile.
        operands: of each product, by its result: the layouts that a and b must have.
    """

    threads: int
    layouts: Mapping[Value, Layout]
    operands: Mapping[Value, tuple[Layout, Layout]]


@dataclass
class _Class:
    """Tiles with one owner."""

    tiles: list[Value] = field(default_factory=list)
    # The sides on which products need it, with the product; the first that accumulates in it.
    sides: dict[str, Dot] = field(default_factory=dict)
    accumulates: Dot | None = None
    # Each element has to have one owner: it is stored, or combined.
    single: bool = False


def assign(func: Func, ctx: Context) -> MatrixOwners | None:
    """Owners for a kernel with products, at Stage.TILE; None for one without.

    Raises:
        OwnershipError: values of each thread's own beside products (SPEC O4).
        LayoutError: a tile that has no place among the threads.
        UnsupportedError: no number of threads serves all products.
        CompileError: staging="device" where values have to change owners (SPEC C5).
    """
    dots = [item for item in walk(func.body) if isinstance(item, Dot)]
    if not dots:
        return None
    for item in walk(func.body):
        if isinstance(item, DECLARED):
            raise OwnershipError(
                f"[{item.construct}] is not available beside metile.dot (line {dots[0].loc.line})",
                item.loc,
                "a kernel with products works on tiles; put work of single threads into another",
            )
    classes = _classes(func)
    sizes = {value: value.type.size for value in classes if isinstance(value.type, TileType)}
    if ctx.target.language == "cpp":
        return _in_order(func, dots, sizes)
    return _Fragments(func, ctx, dots, classes, sizes).owners()


def _in_order(func: Func, dots: list[Dot], sizes: Mapping[Value, int]) -> MatrixOwners:
    """Each tile row-major over the slots of as many threads as there can be.

    Where nothing is reduced over threads they are turns of a loop: one per element.
    """
    passes = any(isinstance(item, Reduce) for item in walk(func.body))
    threads = min(MAX_THREADS if passes else MAX_TILE, *sizes.values())
    if threads < SIMD_WIDTH:
        smallest = min(sizes, key=sizes.__getitem__)
        _identity(smallest, sizes[smallest], threads)
    layouts = {value: _identity(value, size, threads) for value, size in sizes.items()}
    operands = {dot.result: (layouts[dot.a], layouts[dot.b]) for dot in dots}
    return MatrixOwners(threads, layouts, operands)


def _identity(value: Value, size: int, threads: int) -> ThreadLayout:
    registers = size // threads
    if registers > MAX_REGISTERS:
        raise LayoutError(
            f"'{value.name}' has {size} elements in a kernel of {threads} threads, expected at "
            f"most {threads * MAX_REGISTERS}",
            value.loc,
            "the smallest tile and the products decide how many threads there are: make this one "
            "smaller, or those larger",
        )
    if threads < SIMD_WIDTH or registers == 0:
        raise LayoutError(
            f"'{value.name}' has {size} elements, expected at least {max(threads, SIMD_WIDTH)}, "
            "one for each thread",
            value.loc,
            _VECTOR,
        )
    return ThreadLayout.of_loop(size, registers)


class _Fragments:
    """The choice for simdgroups that multiply fragments."""

    def __init__(
        self,
        func: Func,
        ctx: Context,
        dots: list[Dot],
        classes: Mapping[Value, _Class],
        sizes: Mapping[Value, int],
    ) -> None:
        self.dots = dots
        self.classes = classes
        self.sizes = sizes
        self.made_by = definitions(func)
        self.staged = ctx.schedule.staging != "device"
        found = self.shared_out()
        self.products: dict[Value, Product] = dict(
            zip((dot.result for dot in dots), found, strict=True)
        )
        self.threads = found[0].threads

    def shared_out(self) -> list[Product]:
        smallest = min(self.sizes, key=self.sizes.__getitem__)
        if self.sizes[smallest] < SIMD_WIDTH:
            _identity(smallest, self.sizes[smallest], SIMD_WIDTH)
        try:
            return products([dot.shape for dot in self.dots], self.sizes[smallest])
        except UnsupportedError as error:
            raise UnsupportedError(error.message, smallest.loc, error.hint) from None

    def owners(self) -> MatrixOwners:
        decided = {id(each): self.layout(each) for each in self.classes.values()}
        layouts = {value: decided[id(each)] for value, each in self.classes.items()}
        operands: dict[Value, tuple[Layout, Layout]] = {}
        for dot in self.dots:
            product = self.products[dot.result]
            operands[dot.result] = (product.left, product.right)
            if layouts[dot.acc] != product.accumulator:
                raise CompileError(
                    "[dot] acc would have to change owners: a product of another shape accumulates "
                    "in it, too",
                    dot.loc,
                    "give each shape an accumulator of its own; values of both meet in memory only",
                )
            for name in ("a", "b"):
                self.check_device(dot, name, layouts, operands[dot.result])
        return MatrixOwners(self.threads, layouts, operands)

    def check_device(
        self, dot: Dot, name: str, layouts: Mapping[Value, Layout], wanted: tuple[Layout, Layout]
    ) -> None:
        value, layout = getattr(dot, name), wanted[name == "b"]
        if not self.staged and layouts[value] != layout:
            raise CompileError(
                f"[dot] {name} has to change owners, since it is used elsewhere too, or comes from "
                "another product; Schedule(staging='device') keeps values where they are",
                dot.loc,
                "use staging='threadgroup' or None, or load the tile once more for this product",
            )

    def layout(self, each: _Class) -> Layout:
        if each.accumulates is not None:
            return self.products[each.accumulates.result].accumulator
        if not self.staged and not each.single and len(each.sides) == 1:
            ((side, dot),) = each.sides.items()
            product = self.products[dot.result]
            return product.left if side == "a" else product.right
        return self.shared(each)

    def shared(self, each: _Class) -> ThreadLayout:
        """All threads hold it together, neighbours in memory side by side."""
        value, size = each.tiles[0], self.sizes[each.tiles[0]]
        shaped = [tile for tile in each.tiles if len(_shape(tile)) == 2]
        if not shaped or not self.threads <= size <= self.threads * MAX_REGISTERS:
            return _identity(value, size, self.threads)
        rows, columns = _shape(shaped[0])
        return copy_layout((rows, columns), self.threads, self.along(each))

    def along(self, each: _Class) -> int:
        """The axis along which a load of the class reads neighbours; columns if nothing tells."""
        for value in each.tiles:
            load = self.made_by.get(value)
            view = self.made_by.get(load.tensor) if isinstance(load, Load) else None
            if isinstance(view, Tensor) and len(view.strides) >= 2:
                steps = [self.made_by.get(stride) for stride in view.strides[-2:]]
                ones = [isinstance(s, Constant) and s.value == 1 for s in steps]
                if ones == [True, False]:
                    return 0
        return 1


def _shape(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TileType)
    return value.type.shape


def _classes(func: Func) -> dict[Value, _Class]:
    """The class of every tile."""
    found = _joined(func)
    for item in walk(func.body):
        if isinstance(item, Dot):
            found[item.a].sides.setdefault("a", item)
            found[item.b].sides.setdefault("b", item)
            found[item.acc].accumulates = found[item.acc].accumulates or item
        elif item.effect & Effect.WRITE or isinstance(item, Reduce):
            for value in item.operands():
                if value in found:
                    found[value].single = True
    return found


def _joined(func: Func) -> dict[Value, _Class]:
    """Which tiles meet, directly or through others."""
    leader: dict[Value, Value] = {}

    def find(value: Value) -> Value:
        while leader[value] is not value:
            leader[value] = leader[leader[value]]
            value = leader[value]
        return value

    for value in _tiles(func):
        leader[value] = value
    for item in walk(func.body):
        for group in _together(item):
            tiles = [value for value in group if value in leader]
            for other in tiles[1:]:
                leader[find(other)] = find(tiles[0])
    found: dict[Value, _Class] = {}
    made: dict[Value, _Class] = {}
    for value in leader:
        found[value] = made.setdefault(find(value), _Class())
        found[value].tiles.append(value)
    return found


def _tiles(func: Func) -> Iterator[Value]:
    for item in walk(func.body):
        bound = (arg for block in item.blocks() for arg in block.args)
        for value in (*bound, *item.results):
            if isinstance(value.type, TileType):
                yield value


def _together(item: Op) -> Iterator[tuple[Value, ...]]:
    """The values that one operation wants in one place."""
    match item:
        case Dot():
            yield (item.acc, item.result)
        case For():
            yield from zip(item.inits, item.carried, item.yields, item.results, strict=True)
        case If():
            sides = [block.ops[-1].operands() for block in item.blocks()]
            yield from zip(item.results, *sides, strict=True)
        case _:
            yield (*item.operands(), *item.results)
