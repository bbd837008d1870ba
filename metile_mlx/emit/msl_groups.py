"""Groups of four or eight accesses in MSL: packed vectors behind a guard (SPEC V2).

A packed vector is aligned like one of its elements, so a row may begin anywhere. It is used where
all four masks hold and the indices, as 64-bit numbers, follow one another; else each element keeps
its own mask, index and fill. bf16 moves as its bits. An input of 4 to 7 elements is `constant`, so
loads exist for both address spaces.
"""

from __future__ import annotations

from metile_mlx.dtypes import DType, bf16, f16, f32
from metile_mlx.emit.cstyle import CStyle
from metile_mlx.ir.core import Value
from metile_mlx.ir.metal import GROUP_WIDTH, Extract, LoadGroup, StoreGroup
from metile_mlx.ir.types import PointerType, VectorType

_ELEMENTS = {f16: ("half", "half4"), bf16: ("bfloat", "ushort4"), f32: ("float", "float4")}
# One of the two is a template: an emulator without address spaces takes the other for both.
_LOAD = """\
{template}inline {vector} metile_load4(const {space} {scalar}* at) {{
  return {vector}(*reinterpret_cast<const {space} packed_{vector}*>(at));
}}
"""
_STORE = """\
inline void metile_store4(device {scalar}* at, {vector} value) {{
  *reinterpret_cast<device packed_{vector}*>(at) = packed_{vector}(value);
}}
"""
# CUDA's header has its own, of one access.
_LOAD8 = """\
#ifndef METILE_GROUPS_OF_8
inline void metile_load8(
    const device {scalar}* at, thread {vector}& low, thread {vector}& high) {{
  low = {vector}(*reinterpret_cast<const device packed_{vector}*>(at));
  high = {vector}(*reinterpret_cast<const device packed_{vector}*>(at + 4));
}}
#endif
"""
_STORE8 = """\
#ifndef METILE_GROUPS_OF_8
inline void metile_store8(device {scalar}* at, {vector} low, {vector} high) {{
  *reinterpret_cast<device packed_{vector}*>(at) = packed_{vector}(low);
  *reinterpret_cast<device packed_{vector}*>(at + 4) = packed_{vector}(high);
}}
#endif
"""
_CONSECUTIVE = """\
// Whether no index has wrapped between the first and the last.
inline bool metile_consecutive(ulong a, ulong b, ulong c, ulong d) {
  return b == a + 1 && c == a + 2 && d == a + 3;
}
"""
HELPERS = {
    "consecutive": _CONSECUTIVE,
    **{
        f"load4_{dtype}": "// Four neighbours at once, aligned like one of them.\n"
        + "".join(
            _LOAD.format(vector=vector, scalar=scalar, space=space, template=template)
            for space, template in (("device", ""), ("constant", "template <int = 0>\n"))
        )
        for dtype, (scalar, vector) in _ELEMENTS.items()
    },
    **{
        f"store4_{dtype}": _STORE.format(vector=vector, scalar=scalar)
        for dtype, (scalar, vector) in _ELEMENTS.items()
    },
    **{
        f"{name}8_{dtype}": text.format(vector=vector, scalar=scalar)
        for name, text in (("load", _LOAD8), ("store", _STORE8))
        for dtype, (scalar, vector) in _ELEMENTS.items()
        if dtype.bits == 16
    },
}
"""Text by name."""

NAMES = ("metile_consecutive", "metile_load4", "metile_load8", "metile_store4", "metile_store8")
"""What the helpers are called in the text."""


def load_group(e: CStyle, item: LoadGroup) -> None:
    """The vectors: loaded at once under the guard, else element by element."""
    dtype, width = _dtype(item), len(item.indices)
    e.helpers.add(f"load{width}_{dtype}")
    buffer, names = e.name(item.buffer), [e.name(vector) for vector in item.results]
    kind = _ELEMENTS[dtype][1]
    guard = _guard(e, item)
    address = f"&{buffer}[{e.operand(item.indices[0])}]"
    if width > GROUP_WIDTH:
        fast = f"metile_load{width}({', '.join([address, *names])});"
    else:
        fast = f"{names[0]} = metile_load4({address});"
        if not guard:
            e.line(f"{kind} {fast}")
            return
    for name in names:
        e.line(f"{kind} {name};")
    slow = []
    for k, (index, mask, fill) in enumerate(item.parts()):
        text = f"{buffer}[{e.operand(index)}]"
        if mask is not None and fill is not None:
            text = f"{e.operand(mask)} ? {text} : {e.operand(fill)}"
        slow.append(f"{names[k // GROUP_WIDTH]}.{'xyzw'[k % GROUP_WIDTH]} = {_bits(text, dtype)};")
    _guarded(e, guard, fast, slow)


def store_group(e: CStyle, item: StoreGroup) -> None:
    """All at once under the guard, else one by one."""
    dtype, width = _dtype(item), len(item.indices)
    e.helpers.add(f"store{width}_{dtype}")
    buffer, kind = e.name(item.buffer), _ELEMENTS[dtype][1]
    bits = [_bits(e.operand(value), dtype) for value in item.values]
    fours = [bits[k : k + GROUP_WIDTH] for k in range(0, width, GROUP_WIDTH)]
    vectors = ", ".join(f"{kind}({', '.join(four)})" for four in fours)
    fast = f"metile_store{width}(&{buffer}[{e.operand(item.indices[0])}], {vectors});"
    slow = []
    for index, value, mask in item.parts():
        text = f"{buffer}[{e.operand(index)}] = {e.operand(value)};"
        slow.append(text if mask is None else f"if ({e.operand(mask)}) {{ {text} }}")
    _guarded(e, _guard(e, item), fast, slow)


def _guarded(e: CStyle, guard: str, fast: str, slow: list[str]) -> None:
    if not guard:
        e.line(fast)
        return
    e.line(f"if ({guard}) {{")
    e.line(f"  {fast}")
    e.line("} else {")
    for line in slow:
        e.line(f"  {line}")
    e.line("}")


def extract(e: CStyle, item: Extract) -> str:
    """One lane, as a value of the dtype."""
    assert isinstance(item.vector.type, VectorType)
    text = f"{e.name(item.vector)}.{'xyzw'[item.lane]}"
    return f"as_type<bfloat>({text})" if item.vector.type.dtype == bf16 else text


def _dtype(item: LoadGroup | StoreGroup) -> DType:
    assert isinstance(item.buffer.type, PointerType)
    return item.buffer.type.dtype


def _guard(e: CStyle, item: LoadGroup | StoreGroup) -> str:
    """What has to hold for the vector path; empty: it always does."""
    masks = dict.fromkeys(mask for mask in item.masks if mask is not None)
    tests = [e.operand(mask) for mask in masks]
    if item.checked:
        e.helpers.add("consecutive")
        tests += [
            f"metile_consecutive({_operands(e, item.indices[k : k + GROUP_WIDTH])})"
            for k in range(0, len(item.indices), GROUP_WIDTH)
        ]
    return " && ".join(tests)


def _operands(e: CStyle, values: tuple[Value, ...]) -> str:
    return ", ".join(e.operand(value) for value in values)


def _bits(text: str, dtype: DType) -> str:
    return f"as_type<ushort>({text})" if dtype == bf16 else text
