"""Parameters and variables with names that MLX, MSL or C++ take for their own (SPEC X1, F06)."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.emit.reserved import ATTRIBUTES
from tests.support.public import compile_all, parameter_names

MSL = """
half float4 device constant threadgroup kernel vertex fragment thread uint ushort bfloat
packed_half4 metal as_type simd_shuffle threadgroup_barrier mem_flags precise fast
simdgroup_matrix texture2d sampler ulong size_t ptrdiff_t uchar bfloat16_t float16_t
INFINITY NAN M_PI_F
"""
CPP = """
int float double char short long unsigned signed bool auto const static struct class template
typename namespace using operator new delete this void volatile register switch case default goto
sizeof public private nullptr constexpr inline union enum extern friend mutable static_cast
co_await requires concept alignas thread_local wchar_t do std int64_t uint32_t
"""
LIBRARY = "max min abs exp sin clamp select fma floor dot length mix step sum isnan copysign"
PRELUDE = """
complex64_t elem_to_loc elem_to_loc_1 Limits uint64_t LoopedElemToLoc metile_entry buffers scalars
grid begin end lane tid program group metile_scalar thread_index y_out z_written
"""
SHAPES = ["x_shape", "x_strides", "x_ndim", "y_shape", "z_ndim", "x_shape_", "max_x_shape"]
FOREIGN = ["λ", "größe", "变量", "μ_norm", "ﬁ"]
LISTED = " ".join([MSL, CPP, LIBRARY, PRELUDE]).split()
WORDS = [*ATTRIBUTES, *LISTED, *SHAPES, *FOREIGN, "_", "__", "_A", "a__b"]
LEGAL = [word for word in dict.fromkeys(WORDS) if not keyword.iskeyword(word)]
CALL = {"schedule", "backend", "target", "stream", "math_mode", "grid"}

VARIABLES = """\
import metile_mlx as metile

@metile.kernel
def names(x, y, n):
    source = metile.tensor(x, shape=(n,), access="read")
    destination = metile.tensor(y, shape=(n,), access="write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    total = source.load(i)
{body}    destination.store(i, total)
"""
# The value of each variable is a load of its own, so that each needs a name in the text.
PARAMETERS = """\
import metile_mlx as metile

@metile.kernel
def names({a}, {b}, {c}, {d}):
    first = metile.tensor({a}, shape=({c},), access="read")
    second = metile.tensor({b}, shape=({c},), access="read_write")
    third = metile.tensor({d}, shape=({c},), access="write")
    i = metile.program_id(0) * 32 + metile.arange(0, 32)
    value = first.load(i)
    third.store(i, second.load(i) - value)
    second.store(i, value * 2, mask=i < 5)
"""


def load(folder: Path, text: str) -> metile.Kernel:
    path = folder / f"named{len(list(folder.iterdir()))}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: metile.Kernel = module.names
    return made


def attributes(names: list[str]) -> set[str]:
    return {name for name in names if name in ATTRIBUTES}


@pytest.mark.parametrize("start", range(0, len(LEGAL), 40))
def test_variables_of_any_name(start: int, tmp_path: Path) -> None:
    """SPEC X1: the signature holds the declared parameters and the attributes that are used."""
    words = LEGAL[start : start + 40]
    body = "".join(
        f"    {word} = source.load(i + {number + 1}, fill={number})\n    total = total + {word}\n"
        for number, word in enumerate(words)
    )
    kernel = load(tmp_path, VARIABLES.format(body=body))
    x, out = mx.arange(40, dtype=mx.float32), metile.empty((40,), metile.f32)
    text = kernel[(2,)].prepare(x, out, 40, target="metal").msl
    assert text.isascii()
    assert parameter_names(text) == [
        "x", "n", "y", "thread_position_in_threadgroup", "threadgroup_position_in_grid",
    ]  # fmt: skip
    expected = kernel[(2,)](x, out, 40, backend="reference")
    assert mx.array_equal(kernel[(2,)](x, out, 40, backend="cpu"), expected)
    shifted = [
        [float(j + k) if j + k < 40 else float(k - 1) for k in range(1, len(words) + 1)]
        for j in range(40)
    ]
    assert expected.tolist() == [j + sum(values) for j, values in enumerate(shifted)]


@pytest.mark.parametrize("start", range(0, len(LEGAL), 40))
def test_parameters_of_any_name(start: int, tmp_path: Path) -> None:
    """SPEC X1, K7: four names at a time, as input, read_write, scalar and output."""
    words = [word for word in LEGAL[start : start + 40] if word not in CALL]
    words += [f"other{number}" for number in range(-len(words) % 4)]
    a, b = mx.arange(40, dtype=mx.float32), mx.full((40,), 50.0)
    out = metile.empty((40,), metile.f32)
    kernels = []
    for four in range(0, len(words), 4):
        names = dict(zip("abcd", words[four : four + 4], strict=True))
        kernels.append(load(tmp_path, PARAMETERS.format(**names)))
    compile_all(kernel[(2,)].prepare(a, b, 40, out, backend="cpu") for kernel in kernels)
    for kernel in kernels:
        text = kernel[(2,)].prepare(a, b, 40, out, target="metal").msl
        assert text.isascii()
        found = parameter_names(text)
        # Two inputs, the scalar, the read_write output and its written mask, the other output.
        assert len(found[:6]) == len(set(found[:6])) == 6
        assert not attributes(found[:6])
        assert found[6:] == ["thread_position_in_threadgroup", "threadgroup_position_in_grid"]
        for backend in ("cpu", "reference"):
            first, second = kernel[(2,)](a, b, 40, out, backend=backend)
            assert mx.array_equal(first, mx.where(mx.arange(40) < 5, a * 2, b))
            assert mx.array_equal(second, b - a)


def test_a_parameter_named_as_another_with_a_suffix_of_ours(tmp_path: Path) -> None:
    """SPEC K7: `x_out` and `x_written` beside a read_write `x` stay three arrays."""
    words = {"a": "x_out", "b": "x", "c": "x_written", "d": "x_out_1"}
    kernel = load(tmp_path, PARAMETERS.format(**words))
    a, b = mx.arange(40, dtype=mx.float32), mx.full((40,), 50.0)
    out = metile.empty((40,), metile.f32)
    text = kernel[(2,)].prepare(a, b, 40, out, target="metal").msl
    assert len(set(parameter_names(text))) == 8
    first, second = kernel[(2,)](a, b, 40, out, backend="cpu")
    assert mx.array_equal(first, mx.where(mx.arange(40) < 5, a * 2, b))
    assert mx.array_equal(second, b - a)


def test_text_of_the_user_stays_out_of_the_metal_text(tmp_path: Path) -> None:
    """F06: docstrings, comments, strings and a kernel's own name."""
    text = '''\
import metile_mlx as metile

@metile.kernel
def names_größe(x, y, MODE: metile.constexpr = "ε\u2013mode"):
    """µ-norm \u2013 ε"""  # an ε
    source = metile.tensor(x, shape=(32,), access="read")
    destination = metile.tensor(y, shape=(32,), access="write")
    i = metile.arange(0, 32)
    if MODE == "ε\u2013mode":
        destination.store(i, source.load(i))

names = names_größe
'''
    kernel = load(tmp_path, text)
    x, out = mx.arange(32, dtype=mx.float32), metile.empty((32,), metile.f32)
    assert kernel[(1,)].prepare(x, out, target="metal").msl.isascii()
    assert mx.array_equal(kernel[(1,)](x, out, backend="cpu"), x)


def test_every_attribute_is_among_the_names() -> None:
    assert len(ATTRIBUTES) == 20
    assert set(ATTRIBUTES) <= set(LEGAL)
