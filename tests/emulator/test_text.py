"""What is rewritten between MLX's text and clang, and that nothing else is."""

from __future__ import annotations

import pytest

from metile_mlx.emulator import text
from metile_mlx.errors import CompileError

SAME = [
    "threadgroup float* p = s;",
    "void f(threadgroup float* p, device const half* q) {}",
    "void f(threadgroup float p[8], int n) {}",
    "auto q = (threadgroup float4*)s;",
    "auto q = reinterpret_cast<threadgroup uint*>(s);",
    "threadgroup float& r = s[0];",
    "float threadgroup* p = s;",
    "template <typename T> void g(threadgroup T* a, threadgroup T* b);",
    "g<threadgroup float*>(s);",
    "threadgroup_barrier(mem_flags::mem_threadgroup);",
    "int a = 1'000, b = 0x1f, c = 0xeULL; float d = 1.5f; uint e = 7u;",
    'const char* s = "1.0 threadgroup float a;"; // 1.5 threadgroup float b;',
    "/* 2.5\n threadgroup float c[3]; */ int x1 = 3, a1e5 = 4;",
]


@pytest.mark.parametrize("source", SAME)
def test_text_that_stays(source: str) -> None:
    assert text.rewrite(source) == source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("1.0", "1.0f"),
        ("x = .5+1.*2e3-1E-3;", "x = .5f+1.f*2e3f-1E-3f;"),
        ("0x1.8p3", "0x1.8p3f"),
        ("1.5h + 2H + 1e2bf", "half(1.5f) + half(2) + bfloat(1e2f)"),
        ("v.x1 + a.y", "v.x1 + a.y"),
    ],
)
def test_literals_get_their_type(source: str, expected: str) -> None:
    assert text.rewrite(source) == expected


@pytest.mark.parametrize(
    ("source", "types", "names"),
    [
        ("threadgroup float s[32];", ["float metile_type_0[32]"], ["s"]),
        ("threadgroup T s[N * 2][33];", ["T metile_type_0[N * 2][33]"], ["s"]),
        ("threadgroup vec<T, 4> a[8], b[4];",
         ["vec<T, 4> metile_type_0[8]", "vec<T, 4> metile_type_1[4]"], ["a", "b"]),
        ("threadgroup metal::atomic_int c;", ["metal::atomic_int metile_type_0"], ["c"]),
        ("threadgroup float s[size(1, 2)];", ["float metile_type_0[size(1, 2)]"], ["s"]),
    ],
)  # fmt: skip
def test_threadgroup_variables_become_references(
    source: str, types: list[str], names: list[str]
) -> None:
    got = " ".join(text.rewrite(source).split())
    for index, (kind, name) in enumerate(zip(types, names, strict=True)):
        assert f"typedef {kind}; metile_type_{index}& {name} = metal::metile_shared<" in got


def test_lines_stay() -> None:
    source = "a\nthreadgroup float\n  s[32];\nb 1.0\n/* x\n */ c\n"
    assert text.rewrite(source).count("\n") == source.count("\n")
    assert text.rewrite(source).splitlines()[3] == "b 1.0f"


RECORDED = """#include <metal_stdlib>
template <typename T, int N>
[[kernel]] void custom_kernel_k_float_3(
  const device float* inp [[buffer(0)]],
  const constant int* inp_shape [[buffer(1)]],
  const constant float& b [[buffer(2)]],
  device atomic<float>* out [[buffer(3)]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]],
  uint3 thread_position_in_grid [[thread_position_in_grid]]) {
}

template [[host_name("custom_kernel_k_float_3")]] [[kernel]] """ + (
    "decltype(custom_kernel_k_float_3<float, 3>) custom_kernel_k_float_3<float, 3>;\n"
)


def test_signature_of_a_recorded_kernel() -> None:
    signature = text.signature("custom_kernel_k_float_3", RECORDED)
    assert signature.call == "custom_kernel_k_float_3<float, 3>"
    assert [each.name for each in signature.parameters if each.is_buffer] == [
        "inp", "inp_shape", "b", "out",
    ]  # fmt: skip
    assert signature.parameters[2].kind == "const constant float&"
    assert "host_name" not in text.rewrite(RECORDED)
    with pytest.raises(CompileError, match="no kernel other"):
        text.signature("other", RECORDED)


def test_an_unknown_attribute_is_an_error() -> None:
    signature = text.Signature("k", (text.Parameter("amplification_id", "uint", False),))
    with pytest.raises(CompileError, match="amplification_id is unknown"):
        text.entry(signature, "symbol")
