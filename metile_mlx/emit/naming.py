"""Names of kernels: ASCII, and a function of everything that changes the text (X1, F01, F02)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from metile_mlx.emit.reserved import ascii_identifier

# MLX passes an input with fewer elements in the `constant` address space.
CONSTANT_SIZE = 8


def input_passing(size: int, ndim: int) -> str:
    """How MLX declares an input of `size` elements: `reference`, `constant` or `device`.

    A 0-dimensional array is a reference (`x`, not `x[0]`), fewer than 8 elements are a pointer to
    `constant`, all others a pointer to `device` (F08, F09).
    """
    if ndim == 0:
        return "reference"
    return "constant" if size < CONSTANT_SIZE else "device"


def _encode(fact: object) -> str:
    """Injective text of a fact; it never holds an address, so two processes agree on it."""
    if fact is None or isinstance(fact, (bool, int, float, bytes)):
        text = repr(fact)
    elif isinstance(fact, str):
        text = fact
    elif isinstance(fact, Enum):
        text = fact.name
    elif isinstance(fact, (tuple, list)):
        text = "".join(map(_encode, fact))
    elif isinstance(fact, Mapping):
        text = "".join(sorted(_encode((key, value)) for key, value in fact.items()))
    elif is_dataclass(fact):
        text = "".join(_encode((f.name, getattr(fact, f.name))) for f in fields(fact))
    else:
        raise TypeError(f"a kernel's name can't depend on a {type(fact).__name__}: {fact!r}")
    return f"{type(fact).__name__}:{len(text)}:{text};"


def unique_name(function: str, *facts: object) -> str:
    """`<function>_<16 hex digits>`: of a SHA-256 over the function's name and all facts.

    Pass every fact that changes the text or how Metal compiles it: body, header, math mode, and for
    each input its dtype and `input_passing`. Facts are None, bool, int, float, str, bytes, enums,
    dataclasses, and tuples, lists and mappings of these.

    Raises:
        TypeError: a fact of another type, whose text might differ from process to process.
    """
    digest = hashlib.sha256(_encode((function, facts)).encode("utf-8", "surrogatepass")).hexdigest()
    return f"{ascii_identifier(function)[:48].rstrip('_')}_{digest[:16]}"
