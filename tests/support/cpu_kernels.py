"""Hand-written CPU kernels, as a code generator would emit them, for the tests of the runtime."""

from __future__ import annotations

from metile_mlx.dtypes import DType, f32, i32
from metile_mlx.emit.source import Argument, KernelSource

C_TYPES = {
    "f16": "uint16_t", "bf16": "uint16_t", "f32": "float", "bool": "uint8_t",
    "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t",
}  # fmt: skip
MEMBERS = {"f32": "f", "f16": "u", "bf16": "u", "bool": "b", "i32": "i", "u32": "u"}
SIGNATURE = (
    'extern "C" void metile_entry(void* const* buffers, const metile_scalar* scalars, '
    "const uint32_t* grid, uint64_t begin, uint64_t end)"
)


def kernel_source(
    name: str,
    statements: str,
    inputs: dict[str, DType],
    outputs: dict[str, DType],
    scalars: dict[str, DType] | None = None,
    header: str = "",
) -> KernelSource:
    """A kernel that runs `statements` for each `program`; arguments have their own names there."""
    scalars = scalars or {}
    lines = [
        f"const {C_TYPES[dtype.name]}* {name} = (const {C_TYPES[dtype.name]}*)buffers[{i}];"
        for i, (name, dtype) in enumerate(inputs.items())
    ]
    lines += [
        f"{C_TYPES[dtype.name]}* {name} = ({C_TYPES[dtype.name]}*)buffers[{len(inputs) + i}];"
        for i, (name, dtype) in enumerate(outputs.items())
    ]
    lines += [
        f"const {C_TYPES[dtype.name]} {name} = scalars[{i}].{MEMBERS.get(dtype.name, 'raw')};"
        for i, (name, dtype) in enumerate(scalars.items())
    ]
    loop = "for (uint64_t program = begin; program < end; ++program) {"
    body = "\n  ".join([f"{SIGNATURE} {{", *lines, loop, statements, "}"]) + "\n}"
    arguments = [Argument(n, n, dtype) for n, dtype in inputs.items()]
    arguments += [Argument(n, n, dtype, is_scalar=True) for n, dtype in scalars.items()]
    return KernelSource(
        name=name,
        language="cpp",
        body=body,
        header=f'#include "metile_cpu.h"\n{header}',
        inputs=tuple(arguments),
        outputs=tuple(Argument(n, n, dtype) for n, dtype in outputs.items()),
        threads=32,
        threadgroup_bytes=0,
    )


def pointwise(name: str, expression: str, inputs: tuple[str, ...] = ("x",)) -> KernelSource:
    """`out[i] = expression` over f32 arrays of `n` elements, 32 elements a program."""
    statements = (
        "for (int64_t i = program * 32; i < int64_t(program) * 32 + 32; ++i) "
        f"if (i < n) out[i] = {expression};"
    )
    return kernel_source(name, statements, dict.fromkeys(inputs, f32), {"out": f32}, {"n": i32})


def programs(n: int) -> tuple[int]:
    """The grid of a pointwise kernel over `n` elements."""
    return (-(-n // 32),)
