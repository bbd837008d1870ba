"""MSL text: what a Metal engineer would write, and nothing MLX or Metal would misread (SPEC X1,
K4)."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from metile_mlx.dtypes import DType, bf16, bool_, f16, f32, i32, u32, u64
from metile_mlx.emit.msl import emit_msl
from metile_mlx.emit.reserved import ATTRIBUTES, RESERVED, attributes_in, is_legal
from metile_mlx.emit.source import KernelSource
from metile_mlx.ir.arith import BinaryKind, UnaryKind
from metile_mlx.ir.core import Func, Value
from metile_mlx.ir.metal import Binary, Load, Store, Unary
from metile_mlx.layout.affine import AffineMap
from metile_mlx.runtime.metal import UNINITIALISED, register
from metile_mlx.runtime.record import capture
from metile_mlx.runtime.toolchain import KERNEL_FLAGS
from tests.emit import operations as ops
from tests.emit.compiled import COMPILERS, build
from tests.emit.kernels import Maker, Tile, metal_context, output_pointer, source_pointer
from tests.emit.kernels import transpose8 as transpose8_kernel
from tests.emit.test_cpp import branches, exchanged, scalar_kernel, shuffled
from tests.support.arithmetic import NUMPY
from tests.support.filecheck import filecheck

ROTATE = AffineMap.from_bit_order((3, 4, 5, 0, 1, 2))
SWAP = AffineMap.from_bit_order((1, 0, 2, 3, 4), 16)


def text(func: Func, math_mode: str = "safe") -> KernelSource:
    return emit_msl(func, metal_context(math_mode))


def one_line(build_value: Callable[[Maker, Value, Value], Value], dtype: DType) -> str:
    """The line that computes a value from `a` and `b` of a dtype."""
    m = Maker()
    source = source_pointer(dtype)
    a = m.b.add(Load(source, m.const(0, u32)), "a")
    b = m.b.add(Load(source, m.const(1, u32)), "b")
    value = build_value(m, a, b)
    value.name = "y"
    out = output_pointer(value.type.dtype, "out")  # type: ignore[union-attr]
    m.b.emit(Store(out, m.const(0, u32), value))
    body = emit_msl(Func("k", (source, out), m.b.block(), threads=32), metal_context()).body
    (line,) = (line.strip() for line in body.splitlines() if " y = " in line)
    return line


def applied(kind: BinaryKind, nowrap: bool = False) -> Callable[[Maker, Value, Value], Value]:
    return lambda m, a, b: m.b.add(Binary(kind, a, b, nowrap))


def with_constant(kind: BinaryKind, number: float) -> Callable[[Maker, Value, Value], Value]:
    return lambda m, a, b: m.b.add(Binary(kind, a, m.const(number, a.type.dtype)))  # type: ignore[union-attr]


def unary(kind: UnaryKind) -> Callable[[Maker, Value, Value], Value]:
    return lambda m, a, b: m.b.add(Unary(kind, a))


@pytest.mark.parametrize(
    ("build_value", "dtype", "line"),
    [
        (applied(BinaryKind.ADD), f32, "float y = a + b;"),
        (with_constant(BinaryKind.MUL, 2.0), f16, "half y = a * half(2.0f);"),
        (applied(BinaryKind.MUL), bf16, "bfloat y = bfloat(float(a) * float(b));"),
        (with_constant(BinaryKind.ADD, 0.1), bf16, "bfloat y = bfloat(float(a) + 0.100097656f);"),
        (applied(BinaryKind.ADD), i32, "int y = int(uint(a) + uint(b));"),
        (applied(BinaryKind.ADD, nowrap=True), i32, "int y = a + b;"),
        (with_constant(BinaryKind.MUL, 64), i32, "int y = int(uint(a) * 64u);"),
        (with_constant(BinaryKind.SUB, -1), i32, "int y = int(uint(a) - 4294967295u);"),
        (with_constant(BinaryKind.SHL, 3), i32, "int y = int(uint(a) << 3);"),
        (with_constant(BinaryKind.SHR, 3), i32, "int y = a >> 3;"),
        (applied(BinaryKind.SHL), u32, "uint y = a << (b & 31u);"),
        (applied(BinaryKind.SHR), i32, "int y = a >> (b & 31);"),
        (unary(UnaryKind.NEG), i32, "int y = int(0u - uint(a));"),
        (unary(UnaryKind.ABS), i32, "int y = a < 0 ? int(0u - uint(a)) : a;"),
        (unary(UnaryKind.NOT), bool_, "bool y = !a;"),
        (applied(BinaryKind.AND), bool_, "bool y = a && b;"),
        (applied(BinaryKind.XOR), bool_, "bool y = a != b;"),
        (applied(BinaryKind.MINIMUM), i32, "int y = a < b ? a : b;"),
        (applied(BinaryKind.MAXIMUM), f32, "float y = metal::isnan(a) || a > b ? a : b;"),
        (
            applied(BinaryKind.MINIMUM),
            bf16,
            "bfloat y = metal::isnan(float(a)) || float(a) < float(b) ? a : b;",
        ),
        (unary(UnaryKind.NEG), f16, "half y = -a;"),
        (unary(UnaryKind.EXP), f32, "float y = metal::precise::exp(a);"),
        (unary(UnaryKind.EXP), f16, "half y = half(metal::precise::exp(float(a)));"),
        (unary(UnaryKind.ABS), f32, "float y = metal::abs(a);"),
        (applied(BinaryKind.REM), f32, "float y = metal::precise::fmod(a, b);"),
        (lambda m, a, b: m.cast(a, u64), u32, "ulong y = ulong(a);"),
        (lambda m, a, b: m.cast(a, bool_), f16, "bool y = a != half(0.0f);"),
        (lambda m, a, b: m.cast(a, bf16), f16, "bfloat y = bfloat(float(a));"),
    ],
)
def test_lines(
    build_value: Callable[[Maker, Value, Value], Value], dtype: DType, line: str
) -> None:
    """K4: nothing is computed in another type by accident; i32 wraps without signed overflow."""
    assert one_line(build_value, dtype) == line


def test_an_exchange() -> None:
    """C1: scratch at the top, publish, load the source's slot, release; one line per op."""
    filecheck(
        text(transpose8_kernel(f32)).body,
        """
        CHECK:      threadgroup float scratch_f32[64];
        CHECK-NEXT: int batches_value = batches[0];
        CHECK-NEXT: uint thread_index = thread_position_in_threadgroup.x;
        CHECK-NEXT: int batch = int(threadgroup_position_in_grid.x);
        CHECK-NEXT: bool in_bounds = uint(batch) < uint(batches_value);
        CHECK:      float values = in_bounds ? source[index] : 0.0f;
        CHECK-NEXT: scratch_f32[thread_index] = values;
        CHECK-NEXT: threadgroup_barrier(mem_flags::mem_threadgroup);
        CHECK:      float converted = scratch_f32[source_slot];
        CHECK-NEXT: threadgroup_barrier(mem_flags::mem_threadgroup);
        CHECK-NEXT: if (in_bounds) { destination[index] = converted; }
        """,
    )


def test_a_shuffle_names_its_lane_as_ushort() -> None:
    """C3: the lane index is ushort, bool travels as uint."""
    filecheck(
        text(shuffled(64, bool_, SWAP)).body,
        """
        CHECK: bool values = in_bounds ? source[offset] : false;
        CHECK: ushort source_lane = ushort({{.*}});
        CHECK: uint shuffled = simd_shuffle({{.*}}, source_lane);
        CHECK: bool shuffled_2 = shuffled != 0u;
        """,
    )


GOLDEN_KERNELS: dict[str, Callable[[], Func]] = {
    "transpose8_f32.metal": lambda: transpose8_kernel(f32),
    "transpose8_f16_64bit.metal": lambda: transpose8_kernel(f16, u64),
    "shuffle_bf16.metal": lambda: shuffled(32, bf16, SWAP),
    "branches.metal": lambda: branches(64, f32, ROTATE),
}


@pytest.mark.parametrize("name", GOLDEN_KERNELS)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    source = text(GOLDEN_KERNELS[name]())
    golden(name, source.header + source.body)


def all_sources() -> list[KernelSource]:
    kernels = [build_kernel() for build_kernel in GOLDEN_KERNELS.values()]
    kernels += [ops.operations(dtype) for dtype in ops.ARITHMETIC]
    kernels += [exchanged(256, dtype, AffineMap.identity(8)) for dtype in ops.ARITHMETIC]
    return [text(func) for func in kernels]


def test_no_thread_limit_is_declared() -> None:
    """F62: a declared maximum of 32 threads makes Apple's compiler weaken barriers."""
    for source in all_sources():
        assert "max_total_threads" not in source.body + source.header


def test_text_is_ascii_without_macros() -> None:
    """F06, X1."""
    for source in all_sources():
        whole = source.body + source.header + source.name
        assert whole.isascii()
        assert "#" not in whole


def test_no_register_array_is_indexed_at_run_time() -> None:
    """F64: the only arrays are threadgroup memory and arguments; a local is always a scalar."""
    for source in all_sources():
        arrays = set(re.findall(r"(\w+)\[", source.body))
        arguments = {a.name for a in (*source.inputs, *source.outputs)}
        declared = set(re.findall(r"threadgroup \w+ (\w+)\[\d+\];", source.body))
        assert arrays <= arguments | declared
        assert not re.findall(r"^ *(?!threadgroup)\w+ \w+\[", source.body, re.MULTILINE)


def test_no_input_is_aliased_by_a_pointer() -> None:
    """F08: an input may be `device` or `constant`; its name is indexed, its address never taken."""
    for source in all_sources():
        assert not re.search(r"\b(device|constant)\b|[&*] ?\w+ ?=|\w+\s*\*\s*\w+\s*=", source.body)


def test_scalars_are_read_once() -> None:
    """F09: a scalar is an input of shape (1,)."""
    func, _ = scalar_kernel()
    body = text(func).body
    for name in "abcd":
        assert len(re.findall(rf"\b{name}\[0\]", body)) == 1
    assert "batches" not in re.sub(r"batches(_value|\[0\])", "", body)


def test_attributes_are_exactly_those_meant() -> None:
    """X1: MLX adds a parameter for each attribute that it finds anywhere in the body."""
    body = text(transpose8_kernel(f32)).body
    assert attributes_in(body) == ("thread_position_in_threadgroup", "threadgroup_position_in_grid")


HOSTILE = (
    *("half", "float", "kernel", "device", "constant", "threadgroup", "thread", "uint", "sampler"),
    *(
        "exp",
        "metal",
        "simd_shuffle",
        "INFINITY",
        "mem_flags",
        "as_type",
        "min",
        "fast",
        "template",
    ),
    *("mlx", "Limits", "grid_size", "threads_per_grid", "my_threadgroups_per_grid_x"),
    *("source_shape", "source_strides", "source_ndim", "metile_erf", "λ", "été", "_x", "a__b"),
    *ATTRIBUTES,
)


def hostile() -> Func:
    """Variables, parameters and the kernel itself named so that text with these names would
    break."""
    tile = Tile(32)
    value = tile.values
    for word in HOSTILE:
        value = tile.b.add(Binary(BinaryKind.ADD, value, tile.values), word)
    erf = tile.b.add(Unary(UnaryKind.ERF, value), "sigmoid")
    tile.store(erf)
    func = tile.func("kernel")
    func.params[0].name, func.params[1].name, func.params[2].name = "half", "grid_size", "int"
    return func


def test_reserved_names_are_avoided() -> None:
    """X1, F06: unique legal identifiers, none containing an attribute or an input's `_shape`."""
    source = text(hostile())
    names = re.findall(r"^ *(?:\w+) (\w+) = ", source.body, re.MULTILINE)
    arguments = [a.name for a in (*source.inputs, *source.outputs)]
    assert len(set(names) | set(arguments)) == len(names) + len(arguments)
    inputs = [a.name for a in source.inputs]
    for name in names:
        assert is_legal(name, inputs), name
        assert name not in RESERVED
    assert attributes_in(source.body) == (
        "thread_position_in_threadgroup",
        "threadgroup_position_in_grid",
    )
    assert source.body.isascii()
    assert [a.param for a in source.inputs] == ["half", "grid_size"]


def test_mlx_adds_no_parameter_of_its_own() -> None:
    """X1: the signature MLX records for the kernel above holds the declared parameters, no more."""
    source = text(hostile())
    kernel = register(source)

    def launch(x: mx.array, n: mx.array) -> mx.array:
        return kernel.launch([x, n], [(64,)], [mx.float32], (2, 1, 1), [UNINITIALISED])[0]

    (captured,) = capture(launch, mx.zeros(64), mx.array([2], mx.int32))
    signature = captured.text[captured.text.index("[[kernel]]") :].partition("{")[0]
    bound = re.findall(r"(\w+) \[\[(\w+)", signature)
    names = [argument.name for argument in (*source.inputs, *source.outputs)]
    assert [name for name, kind in bound if kind == "buffer"] == names
    assert [name for name, kind in bound if kind != "buffer"] == list(attributes_in(source.body))


def test_math_mode_decides_between_precise_and_free_functions() -> None:
    """F24: the text itself asks for precision in safe mode; the mode is part of the name."""
    func = ops.operations(f32)
    safe, fast = text(func), text(func, "fast")
    assert "metal::precise::exp(" in safe.body
    assert "precise" not in fast.body + fast.header
    assert "metal::exp(" in fast.body
    assert "metal::floor(" in safe.body
    assert safe.name != fast.name
    assert (safe.math_mode, fast.math_mode) == ("safe", "fast")


def test_header_holds_only_what_is_called() -> None:
    assert text(transpose8_kernel(f32)).header == ""
    m = Tile(32)
    m.store(m.b.add(Unary(UnaryKind.ERF, m.values)))
    header = text(m.func()).header
    assert "metile_erf" in header
    assert "metile_sigmoid" not in header


@pytest.mark.parametrize("compiler", COMPILERS)
def test_erf_is_within_two_ulp(compiler: str, tmp_path: Path) -> None:
    """The accuracy stated in the header, over the whole range, with the C library's exp."""
    func = Tile(32)
    func.store(func.b.add(Unary(UnaryKind.ERF, func.values)))
    library = build({"erf_kernel": text(func.func("erf"))}, compiler, tmp_path)
    x = np.concatenate([np.linspace(-6, 6, 40000), 10.0 ** np.linspace(-44, 38, 25000)])
    x = np.concatenate([x, [0.0, -0.0, np.inf, -np.inf]]).astype(np.float32)
    x = np.resize(x, -(-x.size // 32) * 32)
    arrays = {"source": x, "destination": np.zeros_like(x)}
    got = library.run("erf_kernel", arrays, {"batches": x.size // 32}, (x.size // 32,))[
        "destination"
    ]
    exact = np.array([math.erf(float(value)) for value in x])
    step = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert (np.abs(got - exact) / step).max() <= 2
    assert (np.signbit(got) == np.signbit(x)).all()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_integer_text_never_overflows_a_signed_type(compiler: str, tmp_path: Path) -> None:
    """Run under the sanitizer that traps signed overflow and illegal shifts, extremes included."""
    flags = [flag for flag in KERNEL_FLAGS if flag != "-fwrapv"]
    flags += [
        "-fsanitize=signed-integer-overflow,shift,integer-divide-by-zero",
        "-fsanitize-undefined-trap-on-error",
    ]
    source = text(ops.operations(i32))
    library = build({"k": source}, compiler, tmp_path, flags)
    arrays = ops.operands(i32)
    arrays |= {a.param: np.zeros(ops.SIZE, NUMPY[a.dtype]) for a in source.outputs}
    got = library.run("k", arrays, {}, (ops.PROGRAMS,))
    assert np.array_equal(got["add_of_xy"], arrays["x"] + arrays["y"])


def test_text_is_the_same_in_another_process() -> None:
    """Neither addresses nor hash seeds enter the text."""
    script = (
        "from tests.emit.test_msl import text, transpose8_kernel, ops, f32\n"
        "for f in (transpose8_kernel(), ops.operations(f32)):\n"
        "    s = text(f); print(s.name); print(s.header + s.body)\n"
    )
    root = Path(__file__).resolve().parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            cwd=root,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(root)},
        ).stdout
        for seed in ("0", "1")
    }
    assert len(outputs) == 1


def test_kernel_source_describes_the_signature() -> None:
    source = text(transpose8_kernel(bf16))
    assert source.language == "msl"
    assert [(a.name, a.dtype, a.is_scalar) for a in source.inputs] == [
        ("source", bf16, False),
        ("batches", i32, True),
    ]
    assert [a.name for a in source.outputs] == ["destination"]
    assert (source.threads, source.threadgroup_bytes, source.math_mode) == (64, 128, "safe")
    assert re.fullmatch(r"transpose8_[0-9a-f]{16}", source.name)
