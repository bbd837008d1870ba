"""Who owns the tiles of kernels with products, and what has none (SPEC O4, O5, C5, P4)."""

from __future__ import annotations

import pytest

import metile_mlx.frontend.language as metile
from metile_mlx.compiler import lower
from metile_mlx.context import Context, Schedule, Stage
from metile_mlx.errors import (
    CompileError,
    LayoutError,
    MetileError,
    OutOfResources,
    OwnershipError,
    UnsupportedError,
)
from metile_mlx.ir.core import Func, walk
from metile_mlx.ir.matrix import Dot, Operand
from metile_mlx.ir.types import TileType
from metile_mlx.layout.operand import OperandLayout
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.target import CPU, METAL, Target
from tests.support.kernels import tile_ir
from tests.support.products import constexprs, matmul

TURNED = ThreadLayout((3, 4, 5, 6, 7, 0, 1, 2))


def owned(staging: str | None, target: Target = METAL) -> Func:
    kinds = (*("f32*",) * 3, *("i32",) * 6)
    func = tile_ir(matmul.definition, *kinds, **constexprs((32, 64, 16)))
    return lower(func, Context(target, Schedule(staging=staging)), Stage.OWNED)


def layouts(func: Func) -> dict[str, object]:
    return {
        value.name: value.type.layout
        for item in walk(func.body)
        for value in item.results
        if isinstance(value.type, TileType)
    }


def test_p4_simdgroups_load_their_fragments_themselves() -> None:
    func = owned("device")
    assert not any(isinstance(item, Operand) for item in walk(func.body))
    found = layouts(func)
    assert isinstance(found["x"], OperandLayout)
    assert isinstance(found["y"], OperandLayout)
    assert isinstance(found["acc"], ThreadLayout)
    assert func.threads == 128


def test_p1_operands_are_loaded_by_all_threads_and_handed_over() -> None:
    func = owned(None)
    handed = [item for item in walk(func.body) if isinstance(item, Operand)]
    (dot,) = [item for item in walk(func.body) if isinstance(item, Dot)]
    assert [item.result for item in handed] == [dot.a, dot.b]
    loaded = [item.src.type for item in handed]
    assert all(isinstance(t, TileType) and isinstance(t.layout, ThreadLayout) for t in loaded)
    assert isinstance(layouts(func)["acc"], ThreadLayout)


def test_x4_the_tiles_of_a_cpu_lie_in_order() -> None:
    func = owned(None, CPU)
    assert func.threads == 512
    assert all(
        layout == ThreadLayout.identity(layout.size, layout.elements_per_thread)
        for layout in layouts(func).values()
        if isinstance(layout, ThreadLayout)
    )
    assert not any(isinstance(layout, OperandLayout) for layout in layouts(func).values())


def explicit(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(16, 16), access="write")
    i = metile.arange(0, 256, layout=TURNED)
    c.store((i // 16, i % 16), 1.0)
    x, y = metile.tile_load(a, (0, 0), (16, 16)), metile.tile_load(b, (0, 0), (16, 16))
    metile.tile_store(c, (0, 0), metile.dot(x, y))


def lanes(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(16, 16), access="write")
    t = metile.thread_id()
    x, y = metile.tile_load(a, (0, 0), (16, 16)), metile.tile_load(b, (0, 0), (16, 16))
    metile.tile_store(c, (0, 0), metile.dot(x, y) + metile.cast(t, metile.f32))


def vector(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(16, 16), access="write")
    x, y = metile.tile_load(a, (0, 0), (16, 16)), metile.tile_load(b, (0, 0), (16, 16))
    metile.tile_store(c, (0, 0), metile.dot(x, y))
    c.store((0, metile.arange(0, 16)), 1.0)


def wide(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(64, 128), access="write")
    x, y = metile.tile_load(a, (0, 0), (8, 8)), metile.tile_load(b, (0, 0), (8, 8))
    metile.tile_store(c, (0, 0), metile.dot(x, y))
    metile.tile_store(c, (0, 0), metile.full((64, 128), 2, metile.f32))


def unequal(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(128, 128), access="write")
    x, y = metile.tile_load(a, (0, 0), (128, 8)), metile.tile_load(b, (0, 0), (8, 128))
    metile.tile_store(c, (0, 0), metile.dot(x, y))
    x, y = metile.tile_load(a, (0, 0), (8, 8)), metile.tile_load(b, (0, 0), (8, 8))
    metile.tile_store(c, (0, 0), metile.dot(x, y))


def reshaped(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(16, 16), access="write")
    x, y = metile.tile_load(a, (0, 0), (8, 16)), metile.tile_load(b, (0, 0), (16, 32))
    start = metile.reshape(metile.dot(x, y), (32, 8))
    x, y = metile.tile_load(a, (0, 0), (32, 16)), metile.tile_load(b, (0, 0), (16, 8))
    metile.tile_store(c, (0, 0), metile.dot(x, y, start))


def chained(A, B, C):
    a, b = metile.tensor(A, shape=(16, 16)), metile.tensor(B, shape=(16, 16))
    c = metile.tensor(C, shape=(16, 16), access="write")
    x, y = metile.tile_load(a, (0, 0), (16, 16)), metile.tile_load(b, (0, 0), (16, 16))
    metile.tile_store(c, (0, 0), metile.dot(metile.dot(x, y), y))


def large(A, B, C):
    a, b = metile.tensor(A, shape=(128, 128)), metile.tensor(B, shape=(128, 128))
    c = metile.tensor(C, shape=(128, 128), access="write")
    x, y = metile.tile_load(a, (0, 0), (128, 128)), metile.tile_load(b, (0, 0), (128, 128))
    metile.tile_store(c, (0, 0), metile.dot(x, y))


Refused = tuple[object, type[MetileError], str, str, str]
REFUSED: dict[str, Refused] = {
    "layouts of the user's (O5)": (
        explicit, OwnershipError, "metile.dot(x, y)",
        "[dot] a matrix product is not available beside explicit thread layouts (one is stated in "
        "line ",
        "leave the layouts out: a product has owners of its own",
    ),
    "lanes (O4)": (
        lanes, OwnershipError, "metile.thread_id()",
        "[thread_id()] is not available beside metile.dot (line ",
        "a kernel with products works on tiles; put work of single threads into another",
    ),
    "a vector": (
        vector, LayoutError, "metile.arange(0, 16)",
        "'arange_16' has 16 elements, expected at least 32, one for each thread",
        "a vector beside matrices is a view with a stride of 0: metile.tensor(bias, shape=(M, N), "
        "strides=(0, 1)), loaded with tile_load",
    ),
    "a tile for more registers than there are": (
        wide, LayoutError, "metile.full((64, 128), 2, metile.f32)",
        "has 8192 elements in a kernel of 32 threads, expected at most 1024",
        "the smallest tile and the products decide how many threads there are: make this one "
        "smaller, or those larger",
    ),
    "products for different numbers of threads": (
        unequal, UnsupportedError, "metile.tile_load(a, (0, 0), (8, 8))",
        "[dot] tiles of [(128, 128, 8), (8, 8, 8)] need 16 simdgroups for their accumulators, and "
        "the smallest tile, of 64 elements, has work for 1",
        "use a larger depth (K) of the tiles, or fewer rows and columns",
    ),
    "sums of two shapes": (
        reshaped, CompileError, "metile.dot(x, y, start)",
        "[dot] acc would have to change owners: a product of another shape accumulates in it, too",
        "give each shape an accumulator of its own; values of both meet in memory only",
    ),
}  # fmt: skip


@pytest.mark.parametrize("staging", [None, "device"])
@pytest.mark.parametrize("case", REFUSED)
def test_kernels_without_owners(case: str, staging: str | None) -> None:
    kernel, kind, shown, message, hint = REFUSED[case]
    with pytest.raises(kind) as caught:
        lower(tile_ir(kernel, *("f32*",) * 3), Context(METAL, Schedule(staging=staging)))
    assert type(caught.value) is kind
    assert message in caught.value.message
    assert caught.value.hint == hint
    loc = caught.value.loc
    assert loc is not None
    assert loc.text[loc.column - 1 : loc.end_column - 1] == shown


def test_c5_values_keep_their_owners_under_device_staging() -> None:
    func = tile_ir(chained, *("f32*",) * 3)
    lower(func, Context(METAL))
    with pytest.raises(CompileError) as caught:
        lower(func, Context(METAL, Schedule(staging="device")))
    assert caught.value.message == (
        "[dot] a has to change owners, since it is used elsewhere too, or comes from another "
        "product; Schedule(staging='device') keeps values where they are"
    )
    assert caught.value.hint == (
        "use staging='threadgroup' or None, or load the tile once more for this product"
    )


def test_f18_operands_larger_than_threadgroup_memory() -> None:
    """64 KiB for one of them; loaded by each simdgroup, there is none."""
    func = tile_ir(large, *("f32*",) * 3)
    lower(func, Context(METAL, Schedule(staging="device")), Stage.PLANNED)
    with pytest.raises(OutOfResources, match="needs 65536 bytes of threadgroup memory; metal has"):
        lower(func, Context(METAL), Stage.PLANNED)
    lower(tile_ir(large, "f16*", "f16*", "f32*"), Context(METAL), Stage.PLANNED)
