"""How products of matrices are cut into programs: one table, and what chose it (SPEC B1, P4).

| backend | BM x BN x BK | measured |
|---|---|---|
| cpu | 64 x 64 x 64 | roughly |
| metal, cuda, emulator | 64 x 64 x 16 | no |
| reference | 64 x 64 x 64 | no: few steps make a small graph |

On two busy cores of a Xeon, with 512 x 512 x 512 in f32 and bf16, no other tile with sides of 32,
64 or 128 and steps of 32 to 128 was faster with either way of storing B: where B lies transposed,
128 x 64 x 64 was, and where it does not, 64 x 64 x 64.

A side of M or N that 8 or 32 hold has such a tile: few sizes, so that there are few texts. Where
there are fewer than `_FEW` tiles and K is long, K is cut into parts that are added up in their
order, so that more programs have work; the reference has none to gain.
"""

from __future__ import annotations

from dataclasses import dataclass

_SIDES = (8, 32)
_TILES = {"cpu": (64, 64, 64), "reference": (64, 64, 64)}
_OTHER = (64, 64, 16)
# Tiles that are enough for a machine, and the shortest part of K that is worth a program.
_FEW = 16
_PART = 512


@dataclass(frozen=True)
class Tiles:
    """A cut of (batches, M, K) @ (batches, K, N).

    Attributes:
        bm, bn, bk: the tile of a program, and its step along K.
        splits, chunk: parts of K, and the length of each, a multiple of bk.
    """

    bm: int
    bn: int
    bk: int
    splits: int
    chunk: int


def product_tiles(backend: str, batches: int, m: int, n: int, k: int) -> Tiles:
    """The cut of a product on a backend; all sizes are 1 or more."""
    most = _TILES.get(backend, _OTHER)
    bm, bn = (_side(size, tile) for size, tile in zip((m, n), most[:2], strict=True))
    bk = most[2]
    count = batches * -(-m // bm) * -(-n // bn)
    wanted = 1 if backend == "reference" else max(1, min(_FEW // count, k // _PART))
    chunk = -(-k // (wanted * bk)) * bk
    return Tiles(bm, bn, bk, -(-k // chunk), chunk)


def _side(size: int, tile: int) -> int:
    """The tile's, or a shorter one that holds `size`."""
    return next((side for side in _SIDES if size <= side < tile), tile)
