"""The one printer of the IR: `%result = opcode operands {attributes} : type`, one line per op."""

from __future__ import annotations

from enum import Enum

from metile_mlx.ir.core import Block, Func, Op, Value


class _Names:
    """Unique printable names: the stable name, with a number where two values share it."""

    def __init__(self) -> None:
        self._names: dict[Value, str] = {}
        self._used: dict[str, int] = {}

    def __call__(self, value: Value) -> str:
        if value not in self._names:
            base = value.name or "v"
            count = self._used.get(base, 0)
            self._used[base] = count + 1
            self._names[value] = f"%{base}" if count == 0 else f"%{base}.{count}"
        return self._names[value]


def print_func(func: Func, locations: bool = False) -> str:
    """The text of a kernel; `locations` appends each op's source position."""
    names = _Names()
    params = ", ".join(f"{names(param)}: {param.type}" for param in func.params)
    threads = f" threads={func.threads}" if func.threads else ""
    lines = [f"kernel @{func.name}({params}){threads} {{"]
    _block(func.body, names, lines, 1, locations)
    return "\n".join([*lines, "}"])


def print_op(item: Op) -> str:
    """One op on its own, for messages."""
    return _op(item, _Names())


def _block(block: Block, names: _Names, lines: list[str], depth: int, locations: bool) -> None:
    for item in block.ops:
        where = f"  // {item.loc.line}:{item.loc.column}" if locations else ""
        lines.append("  " * depth + _op(item, names) + where)
        for inner in item.blocks():
            args = ", ".join(f"{names(arg)}: {arg.type}" for arg in inner.args)
            lines.append("  " * depth + (f"{{ ({args})" if args else "{"))
            _block(inner, names, lines, depth + 1, locations)
            lines.append("  " * depth + "}")


def _op(item: Op, names: _Names) -> str:
    parts = [text for name in item.field_names if (text := _field(item, name, names))]
    results = ", ".join(names(value) for value in item.results)
    types = ", ".join(str(value.type) for value in item.results)
    head = f"{results} = " if results else ""
    tail = f" : {types}" if types else ""
    return f"{head}{item.opcode} {', '.join(parts)}".rstrip() + tail


def _field(item: Op, name: str, names: _Names) -> str:
    value = getattr(item, name)
    if value is None or isinstance(value, Block):
        return ""
    if isinstance(value, Value):
        return names(value) if name in _PLAIN else f"{name}={names(value)}"
    if isinstance(value, tuple) and any(isinstance(part, Value) for part in value):
        inner = ", ".join(names(part) if isinstance(part, Value) else str(part) for part in value)
        return f"[{inner}]" if name in _PLAIN else f"{name}=[{inner}]"
    if isinstance(value, Enum):
        return str(value.value)
    return f"{name}={value!r}" if not isinstance(value, bool) or value else ""


# Operands every reader knows by position.
_PLAIN = frozenset(
    {"lhs", "rhs", "src", "tensor", "indices", "buffer", "index", "value", "values", "vector"}
)
