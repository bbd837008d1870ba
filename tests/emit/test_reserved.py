"""Identifiers of emitted text: legal, distinct, readable, not misread by MLX (SPEC X1, F06)."""

from __future__ import annotations

import keyword
import re
import shutil
import subprocess
from pathlib import Path

import mlx
import pytest

from metile_mlx.emit.reserved import (
    ATTRIBUTES,
    INPUT_SUFFIXES,
    RESERVED,
    ascii_identifier,
    attributes_in,
    is_legal,
    legal_identifier,
    shape_arguments_in,
)

PRELUDE = Path(mlx.__path__[0]) / "include/mlx/backend/metal/kernels"
PRELUDE_FILES = ("bf16.h", "bf16_math.h", "complex.h", "defines.h", "logging.h", "utils.h")

UNUSUAL = """
    x _ __ _x __x x__ x__y _X _T1 __init__ __metal_fabs λ Λ µ μ α_β σ² ñandú été straße naïve 日本
    值 ﬁ Ω x1 X x_2 x_ half_ half_2 thread_position_in_grid_ my_grid_size grid_size_2 idx_shape
    x_shape x_strides x_ndim x_shape_2 max_shape y_shape out_strides x_x_shape
    thread_index_in_simdgroup_0 grid__size
    dispatch_threads_per_threadgroup_per_threadgroup thread_grid_size_in_threadgroup
    INFINITY NAN M_PI_F HUGE_VALF MAXFLOAT linux unix and or not xor bitand compl
"""  # noqa: RUF001
ODD_TEXT = [
    "",
    " ",
    "<lambda>",
    "a b",
    "a-b",
    "1",
    "2d",
    "9λ",
    "\N{COMBINING ACUTE ACCENT}",
    "\t",
    "'",
]
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)] or ["c++"]


def nasty_names() -> list[str]:
    attributes = [
        *ATTRIBUTES,
        *(f"my_{name}" for name in ATTRIBUTES),
        *(f"{n}s" for n in ATTRIBUTES),
    ]
    return list(
        dict.fromkeys(
            [
                *UNUSUAL.split(),
                *ODD_TEXT,
                *sorted(RESERVED),
                *attributes,
                *keyword.kwlist,
                *keyword.softkwlist,
            ]
        )
    )


def name_all(names: list[str], inputs: list[str]) -> dict[str, str]:
    taken: set[str] = set()
    result = {}
    for name in names:
        result[name] = legal_identifier(name, taken, inputs)
        taken.add(result[name])
    return result


@pytest.fixture(scope="module")
def named() -> dict[str, str]:
    return name_all(nasty_names(), ["x", "y"])


def test_every_nasty_name_becomes_legal_and_distinct(named: dict[str, str]) -> None:
    """SPEC X1, F06."""
    assert len(named) > 850
    assert len(set(named.values())) == len(named)
    for name, legal in named.items():
        assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", legal), name
        assert legal not in RESERVED
        assert "__" not in legal
        assert not attributes_in(legal)
        assert not shape_arguments_in(legal, ["x", "y"])


def test_naming_is_deterministic_and_leaves_legal_names_alone(named: dict[str, str]) -> None:
    assert name_all(nasty_names(), ["x", "y"]) == named
    for name in ("x", "value", "row_0", "max_value", "shape", "z_shape"):
        assert legal_identifier(name, inputs=["x"]) == name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("half", "half_"),
        ("and", "and_"),
        ("float4", "float4_"),
        ("packed_half2", "packed_half2_"),
        ("simd_shuffle_xor", "simd_shuffle_xor_"),
        ("M_PI_F", "M_PI_F_"),
        ("ceildiv", "ceildiv_"),
        ("grid_size", "gridsize"),
        ("thread_position_in_grid", "thread_position_ingrid"),
        ("dispatch_threads_per_threadgroup", "dispatch_threads_perthreadgroup"),
        ("λ", "lambda"),
        ("Σx", "Sigmax"),
        ("µ", "mu"),
        ("été", "ete"),
        ("日", "u65e5"),
        ("__private", "private_"),
        ("a__b", "a_b"),
        ("<lambda>", "lambda_"),
        ("2d", "v2d"),
        ("", "v"),
        ("_", "v"),
        ("x_shape", "xshape"),
        ("max_strides", "maxstrides"),
    ],
)
def test_names_stay_readable(name: str, expected: str) -> None:
    """SPEC X1, F06: the change is small and can be guessed."""
    assert legal_identifier(name, inputs=["x"]) == expected


def test_a_taken_name_is_numbered() -> None:
    taken: set[str] = set()
    for expected in ("half_", "half_2", "half_3"):
        taken.add(legal_identifier("half", taken))
        assert expected in taken
    assert legal_identifier("x", {"x", "x_2"}) == "x_3"


def test_shape_suffixes_depend_on_the_inputs() -> None:
    """SPEC X1: MLX adds `<input>_shape` for inputs of the kernel only, anywhere in the text."""
    assert is_legal("max_shape", inputs=["y"])
    assert not is_legal("max_shape", inputs=["y", "x"])
    for suffix in INPUT_SUFFIXES:
        assert not is_legal(f"anything{suffix}")
        assert legal_identifier(f"anything{suffix}") == f"anything{suffix[1:]}"


def test_what_mlx_would_add_is_found_in_text() -> None:
    body = (
        "uint i = thread_position_in_grid.x; // see threads_per_threadgroup\nint n = abc_shape[0];"
    )
    assert attributes_in(body) == ("thread_position_in_grid", "threads_per_threadgroup")
    assert shape_arguments_in(body, ["abc", "c", "b"]) == ("abc_shape", "c_shape")


def test_ascii_identifier_never_collapses_to_nothing() -> None:
    for text in ODD_TEXT:
        assert ascii_identifier(text).isidentifier()
        assert ascii_identifier(text).isascii()


def prelude_names() -> set[str]:
    """What MLX's prelude defines at file scope, read from the headers MLX installs."""
    text = "\n".join((PRELUDE / name).read_text() for name in PRELUDE_FILES)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    patterns = (
        r"#define (\w+)",
        r"\b(?:struct|namespace)\s+(\w+)",
        r"\btypedef[^;]*?(\w+);",
        r"\n *using (\w+)\s*=",
        r"constexpr (?:constant )?\w+ (\w+)\s*(?:=|<)",
        r"(?:METAL_FUNC|\ninline)\s+(?:const\s+)?[\w:<>, ]+?[\s&*]+(\w+)\s*\(",
        r"\ninline \w+\n(\w+)\(",
    )
    return {name for pattern in patterns for name in re.findall(pattern, text)}


def test_the_names_of_mlx_prelude_are_reserved() -> None:
    """SPEC X1: read from the installed MLX, so a new release that adds a name fails here."""
    found = prelude_names()
    assert {"Limits", "elem_to_loc", "MTL_CONST", "bfloat16_t", "simd_shuffle", "ceildiv"} <= found
    # Members and template parameters are not visible to a kernel's body.
    members = {"U", "operator", "finite_max", "finite_min", "value_type", "type"}
    assert found - members - RESERVED == set()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_cpp_compiler_accepts_every_name(
    compiler: str, named: dict[str, str], tmp_path: Path
) -> None:
    """SPEC X1: as variables, with the C and C++ headers and `using namespace std` in scope."""
    headers = "cmath cstdint cstring climits cfloat cstdio cstdlib cassert cerrno algorithm complex"
    lines = [f"#include <{header}>" for header in headers.split()]
    lines += ["using namespace std;", "void f() {"]
    lines += [f"  float {legal} = 1; (void){legal};" for legal in named.values()]
    source = tmp_path / "names.cpp"
    source.write_text("\n".join([*lines, "}"]))
    for standard in ("c++14", "gnu++20"):
        done = subprocess.run(
            [compiler, f"-std={standard}", "-fsyntax-only", str(source)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
