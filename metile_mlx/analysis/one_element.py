"""Stores in which several threads write one element: which one is last is not defined (SPEC K6)."""

from __future__ import annotations

from metile_mlx.analysis.affine_forms import affine_forms
from metile_mlx.analysis.lane_masks import lanes_held
from metile_mlx.errors import CompileError
from metile_mlx.ir.core import Func, Value, definitions, walk
from metile_mlx.ir.lanes import threads_of
from metile_mlx.ir.tile import Store
from metile_mlx.ir.types import ScalarType


def check_stores(func: Func) -> None:
    """Refuse a store to an element that is the same in all threads, by more than one of them.

    What is the same in all threads one of them stores, unless a mask of each one's own decides. A
    mask that follows from the thread alone may leave one. What another mask leaves is not known:
    the emulator's checker sees it.

    Raises:
        CompileError: at the store.
    """
    stores = [
        item
        for item in walk(func.body)
        if isinstance(item, Store) and all(map(_is_uniform, item.indices))
    ]
    by_several = [
        item
        for item in stores
        if not all(map(_is_uniform, (item.value, *(() if item.mask is None else (item.mask,)))))
    ]
    if not by_several:
        return
    threads, defined = threads_of(func), definitions(func)
    forms = affine_forms(func, threads)
    for item in by_several:
        count = threads
        if item.mask is not None and not _is_uniform(item.mask):
            held = lanes_held(item.mask, defined, forms)
            if held is None:
                continue
            count = int(held.sum()) if held.size > 1 else threads * int(held.any())
        if count > 1:
            raise CompileError(
                f"[store] {count} threads store to one element of {item.tensor.name}",
                item.loc,
                "give each thread an element, or mask all but one: mask=metile.thread_id() == 0",
            )


def _is_uniform(value: Value) -> bool:
    return isinstance(value.type, ScalarType) and value.type.uniform
