"""The tile op that names elements anew, by a map on the bits of their index."""

from __future__ import annotations

from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Op, Value, op
from metile_mlx.ir.types import TileType, Type
from metile_mlx.layout.affine import AffineMap
from metile_mlx.layout.thread_layout import ThreadLayout


@op("tile.permute")
class Permute(Op):
    """Element i is element j of `src`: bit b of j is bit `bit_order[b]` of i; then XOR `xor_mask`.

    Nothing moves. Who held element j holds it still, as element i.
    """

    src: Value
    bit_order: tuple[int, ...]
    xor_mask: int = 0

    @property
    def map(self) -> AffineMap:
        """i -> j."""
        return AffineMap.from_bit_order(self.bit_order, self.xor_mask)

    def infer(self) -> tuple[Type, ...]:
        assert isinstance(self.src.type, TileType)
        layout = self.src.type.layout
        if layout is None:
            return (self.src.type,)
        owned = self.map.inverse() @ layout.map
        made = ThreadLayout(owned.bit_order, owned.constant, layout.elements_per_thread)
        return (self.src.type.with_layout(made),)

    def verify(self) -> None:
        if not isinstance(self.src.type, TileType) or len(self.src.type.shape) != 1:
            raise CompileError(
                f"[permute] got {self.src.type}, expected a one-dimensional tile",
                hint="metile.reshape(tile, size) makes it one-dimensional",
            )
        size = self.src.type.size
        if size & (size - 1):
            raise CompileError(f"[permute] the tile has {size} elements, expected a power of two")
        bits = size.bit_length() - 1
        if sorted(self.bit_order) != list(range(bits)):
            raise CompileError(
                f"[permute] bit_order is {self.bit_order}, expected a permutation of 0..{bits - 1} "
                f"for {size} elements",
                hint="name each bit of the element's index once",
            )
        if not 0 <= self.xor_mask < size:
            raise CompileError(f"[permute] xor_mask is {self.xor_mask}, expected 0..{size - 1}")
