"""The strict front rejects what Apple's compiler rejects, each class, and nothing near it."""

from __future__ import annotations

import re
import time
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.emulator import front, front_clang, toolchain
from metile_mlx.emulator.front_tokens import tokens
from metile_mlx.errors import BackendError, CompileError
from metile_mlx.runtime.record import capture

SIGNATURE = """[[kernel]] void probe(
  const device float* x [[buffer(0)]],
  const constant int* small [[buffer(1)]],
  const constant float& eps [[buffer(2)]],
  device float* y [[buffer(3)]],
  device atomic<float>* sum [[buffer(4)]],
  uint3 thread_position_in_grid [[thread_position_in_grid]],
  uint thread_index_in_simdgroup [[thread_index_in_simdgroup]]) {
"""


def program(body: str, header: str = "") -> str:
    """`@` marks the line a finding must name; it is removed."""
    return f"{header}\n{SIGNATURE}{body}\n}}\n"


def check(text: str) -> tuple[front.FrontResult, int]:
    marked = next((n for n, line in enumerate(text.splitlines(), 1) if "@" in line), 0)
    return front.examine(text.replace("@", "")), marked


# (rule, header, body): `@` stands on the line of the finding.
REJECTED = {
    "double variable": ("double", "", "double a = 1.0;@"),
    "double cast": ("double", "", "\n\ny[0] = float((double)x[0]);@"),
    "double in a header": ("double", "inline float f(float a) { return double(a); }@", ""),
    "double parameter": ("double", "float f(double a);@", ""),
    "double template argument": ("double", "", "y[0] = static_cast<double>(x[0]);@"),
    "double through a macro": ("double", "#define REAL double", "REAL a = 1;@"),
    "long double": ("double", "", "long double a = 1;@"),
    "pointer parameter": ("address-space-missing", "float f(float* p);@", ""),
    "const pointer parameter": ("address-space-missing", "float f(const float* p);@", ""),
    "const after": ("address-space-missing", "float f(float const* const p);@", ""),
    "reference parameter": ("address-space-missing", "void f(float& p) { p = 1; }@", ""),
    "const reference": ("address-space-missing", "float f(const float4& p) { return p.x; }@", ""),
    "local pointer": ("address-space-missing", "", "float a = 1;\nfloat* p = &a;@"),
    "local reference": ("address-space-missing", "", "float a = 1;\nfloat& p = a;@"),
    "pointer to a vector": ("address-space-missing", "", "float4 a;\nfloat4* p = &a;@"),
    "pointer to vec<>": ("address-space-missing", "void f(vec<float, 4>* p);@", ""),
    "qualified name": ("address-space-missing", "void f(metal::float4* p);@", ""),
    "pointer to a struct": ("address-space-missing", "struct S { int a; };\nvoid f(S* p);@", ""),
    "pointer to an alias": ("address-space-missing", "typedef float real;\nvoid f(real* p);@", ""),
    "unsigned int pointer": ("address-space-missing", "void f(unsigned int* p);@", ""),
    "reference to an array": ("address-space-missing", "void f(float (&p)[4]);@", ""),
    "unnamed parameter": ("address-space-missing", "void f(float*);@", ""),
    "field": ("address-space-missing", "struct S {\n float* p;@\n};", ""),
    "returned pointer": ("address-space-missing", "float* f(device float* p);@", ""),
    "device to threadgroup parameter": (
        "address-space-mismatch",
        "void f(threadgroup float* p);",
        "f(y);@",
    ),
    "device to thread parameter": (
        "address-space-mismatch",
        "float f(const thread float* p);",
        "y[0] = f(x);@",
    ),
    "device to threadgroup reference": (
        "address-space-mismatch",
        "void f(threadgroup float& p);",
        "f(y[0]);@",
    ),
    "constant to device parameter": (
        "address-space-mismatch",
        "int f(const device int* p);",
        "y[0] = f(small);@",
    ),
    "threadgroup to device template": (
        "address-space-mismatch",
        "template <typename T> void f(device T* p) { p[0] = 0; }",
        "threadgroup float t[4];\nf(t);@",
    ),
    "constant scalar to device reference": (
        "address-space-mismatch",
        "float f(const device float& e);",
        "y[0] = f(eps);@",
    ),
    "constant to device variable": (
        "address-space-mismatch",
        "",
        "const device int* p = small;@\ny[0] = p[0];",
    ),
    "device to threadgroup variable": ("address-space-mismatch", "", "threadgroup float* p = y;@"),
    "threadgroup to device variable": (
        "address-space-mismatch",
        "",
        "threadgroup float t[8];\ndevice float* p = t;@",
    ),
    "device to thread variable": ("address-space-mismatch", "", "const thread float* p = x;@"),
    "assignment": (
        "address-space-mismatch",
        "",
        "threadgroup float t[8];\ndevice float* p = y;\np = t;@",
    ),
    "reference to another space": (
        "address-space-mismatch",
        "",
        "const device float& e = eps;@",
    ),
    "returned pointer of another space": (
        "address-space-mismatch",
        "device float* f(threadgroup float* p) { return p; }@",
        "",
    ),
    "two spaces in a conditional": (
        "address-space-mismatch",
        "",
        "threadgroup float t[8];\nauto p = eps > 0 ? t : y;@",
    ),
    "cast to another space": ("address-space-mismatch", "", "auto p = (device float*)small;@"),
    "cast that drops the space": ("address-space-mismatch", "", "auto p = (thread float*)y;@"),
    "reinterpret_cast to another space": (
        "address-space-mismatch",
        "",
        "auto p = reinterpret_cast<threadgroup float*>(y);@",
    ),
    "in a template body": (
        "address-space-mismatch",
        "template <typename T> void g(threadgroup T* p);\n"
        "template <typename T> void f(device T* p) {\n  g(p);@\n}",
        "f(y);",
    ),
    "float4 to half4": ("vector-conversion", "", "float4 a = 1;\nhalf4 b = a;@"),
    "half4 to float4": ("vector-conversion", "", "half4 a = 1;\nfloat4 b = a;@"),
    "float4 to float3": ("vector-conversion", "", "float4 a = 1;\nfloat3 b = a;@"),
    "float2 to float": ("vector-conversion", "", "float2 a = 1;\nfloat b = a;@"),
    "float4 to int4": ("vector-conversion", "", "float4 a = 1;\nint4 b;\nb = a;@"),
    "vector argument": (
        "vector-conversion",
        "half4 f(half4 a);",
        "float4 a = 1;\nhalf4 b = f(a);@",
    ),
    "vector result": ("vector-conversion", "half4 f(float4 a) { return a; }@", ""),
    "mixed vectors": ("vector-conversion", "", "float4 a = 1;\nhalf4 b = 1;\nauto c = a + b;@"),
    "compound assignment": ("vector-conversion", "", "float3 a = 1;\nhalf3 b = 1;\na += b;@"),
    "vec<> to vec<>": (
        "vector-conversion",
        "",
        "vec<float, 4> a = 1;\nvec<half, 4> b = a;@",
    ),
    "loaded vector": (
        "vector-conversion",
        "",
        "auto v = (const device float4*)x;\nhalf4 b = v[0];@",
    ),
    "threadgroup in a function": (
        "threadgroup-scope",
        "float f(float a) {\n  threadgroup float t[32];@\n  t[0] = a;\n  return t[0];\n}",
        "",
    ),
    "threadgroup scalar in a function": (
        "threadgroup-scope",
        "inline void f() { threadgroup int n; }@",
        "",
    ),
    "threadgroup in a template function": (
        "threadgroup-scope",
        "template <typename T, int N>\nT f(T a) {\n  threadgroup T t[N];@\n  return a;\n}",
        "",
    ),
    "threadgroup in a block of a function": (
        "threadgroup-scope",
        "void f(int n) { for (int i = 0; i < n; ++i) {\n threadgroup float t[2]; } }@",
        "",
    ),
    "threadgroup at program scope": ("threadgroup-scope", "threadgroup float t[32];@", ""),
    "threadgroup at program scope, initialised": (
        "threadgroup-scope",
        "threadgroup int n = 0;@",
        "",
    ),
    "threadgroup in a namespace": ("threadgroup-scope", "namespace n { threadgroup int a; }@", ""),
    "threadgroup field": ("threadgroup-scope", "struct S {\n  threadgroup float a[4];@\n};", ""),
    "threadgroup vec in a function": (
        "threadgroup-scope",
        "void f() { threadgroup vec<float, 4> t[8]; }@",
        "",
    ),
    "recursion": (
        "recursion",
        "int f(int n) {\n  return n < 2 ? n : f(n - 1) + f(n - 2);@\n}",
        "",
    ),
    "mutual recursion": (
        "recursion",
        "int g(int n);\nint f(int n) { return g(n); }@\nint g(int n) { return n ? f(n - 1) : 0; }",
        "",
    ),
    "recursion of a template": (
        "recursion",
        "template <typename T>\nT f(T n) { return n > T(0) ? f(n - T(1)) : T(0); }@",
        "y[0] = f(x[0]);",
    ),
    "recursion of one overload": (
        "recursion",
        "float f(int n) { return 1; }\nfloat f(float n) { return n > 0 ? f(n - 1.0f) : 0; }@",
        "y[0] = f(x[0]);",
    ),
    "recursion of a method": (
        "recursion",
        "struct S { int f(int n) { return n ? f(n - 1) : 0; } };@",
        "S s;\ny[0] = s.f(3);",
    ),
}


@pytest.mark.emulator
@pytest.mark.parametrize("case", REJECTED)
def test_what_apple_rejects_is_rejected_at_its_line(case: str) -> None:
    rule, header, body = REJECTED[case]
    result, line = check(program(body, header))
    assert [(each.rule, each.line) for each in result.errors if each.rule == rule] == [
        (rule, line)
    ], str(result)
    assert {each.rule for each in result.errors} <= {rule, "address-space-mismatch"}, str(result)


# (header, body)
ACCEPTED = {
    "double in a comment": ("// double\n/* double */", ""),
    "double in an unused macro": ("#define REAL double", ""),
    "double in a name": ("", "float double_rate = 2; y[0] = double_rate;"),
    "unsuffixed literals": ("float f(float a);", "y[0] = f(1.0) + 2.5e-3 * x[0] - 1e30;"),
    "suffixes": ("", "half a = 1.5h; y[0] = 1.5f * a;"),
    "device pointer": ("float f(const device float* p);", "y[0] = f(x) + f(x + 3) + f(&x[2]);"),
    "space after the type": ("float f(float const device* p);", "y[0] = f(x);"),
    "template over the space": (
        "template <typename P> float f(P p) { return p[0]; }",
        "threadgroup float t[4];\ny[0] = f(x) + f(t) + f(small);",
    ),
    "overloads over the space": (
        "float f(const device float* p);\nfloat f(const constant int* p);\n"
        "float f(const threadgroup float* p);",
        "threadgroup float t[4];\ny[0] = f(x) + f(small) + f(t);",
    ),
    "thread pointers": (
        "void f(thread float* p, thread float& r, const thread float4& v);",
        "float a[4]; float b; float4 v;\nf(a, b, v); f(&b, a[1], v);",
    ),
    "threadgroup pointers": (
        "template <int N> void f(threadgroup float* p, threadgroup float& q) { p[0] = N; q = 1; }",
        "threadgroup float t[32];\nthreadgroup float* p = t + 4;\nf<3>(p, t[1]); f<1>(&t[2], *p);",
    ),
    "threadgroup array by reference": (
        "template <typename T, int N> void f(threadgroup T (&p)[N]) { p[0] = 0; }",
        "threadgroup float t[32];\nf(t);",
    ),
    "products of names": (
        "",
        "int a = small[0], b = small[1];\nint c = a * b; y[a * b] = a * b & c; y[c & 3] = a & b;",
    ),
    "a value named like a type parameter": (
        "template <typename T> T twice(T a) { return a + a; }",
        "int T = small[0];\nint H = 2;\ny[T * H] = twice(x[T * H]);",
    ),
    "casts to scalars times": ("", "y[0] = float(small[0]) * x[0] * (float)small[1] * (x[1]);"),
    "vector of pointers in a struct": (
        "struct S { device float* p; const constant int* q; thread float* r; };",
        "float a; S s{y, small, &a};\ns.p[0] = s.q[0];",
    ),
    "alias with a space": (
        "using dfloat = device float;\nusing dp = const device float*;\nfloat f(dfloat* p, dp q);",
        "y[0] = f(y, x);",
    ),
    "casts within a space": (
        "",
        "auto a = (const device float4*)x;\nauto b = reinterpret_cast<device uint*>(y);\n"
        "float4 v = a[0]; b[0] = as_type<uint>(v.x);",
    ),
    "auto pointers": ("", "auto p = x + 1; auto q = small; auto r = y; r[0] = p[0] + q[0];"),
    "pointers advanced": ("", "y += 3; x += small[0]; y[0] = x[0];"),
    "explicit vector conversions": (
        "",
        "float4 a = 1;\nhalf4 b = half4(a); float3 c = a.xyz; float d = a.x;\n"
        "int4 e = int4(a); b.xy = half2(a.zw); y[0] = d + c.x + e.x + float2(b.xy).x;",
    ),
    "scalar to vector": ("", "float4 a = 1.0; half4 b = 2; a = 3; a *= 2.0; y[0] = a.x + b.x;"),
    "vector comparisons": (
        "",
        "float4 a = 1, b = 2;\nbool4 m = a < b; float4 c = select(a, b, m); y[0] = any(m) + c.x;",
    ),
    "vector functions": (
        "",
        "float4 a = exp(float4(x[0], x[1], 0.0, 1.0)); a = max(a, 0.5f); a = fma(a, a, a);\n"
        "y[0] = dot(a, a) + length(a.xy) + simd_sum(a).x + clamp(a, 0.0f, 1.0f).y;",
    ),
    "packed vectors": (
        "",
        "auto p = (const device packed_float3*)x;\nfloat3 v = p[0];\n"
        "packed_float3 w = v; y[0] = w.x;",
    ),
    "integer vectors": ("", "uint4 a = uint4(1, 2, 3, 4); a = a >> 2; a &= 3; y[0] = a.x + a.w;"),
    "threadgroup in a kernel": (
        "",
        "threadgroup float t[32]; threadgroup int n, m[2];\n"
        "t[0] = 1; n = 2; m[1] = n; y[0] = t[0];",
    ),
    "threadgroup in an inner block of a kernel": (
        "",
        "if (small[0]) { threadgroup float t[4];\nt[0] = 1; y[0] = t[0]; }",
    ),
    "reference to a pointer": (
        "template <typename T> void f(const device T*& p, device float*& q) { p += 1; q += 1; }",
        "f(x, y);",
    ),
    "methods of the same name": (
        "struct A { int f(int n) const { return n; } };\n"
        "template <typename T> struct B { A a; int f(int n) const { return a.f(n); } };",
        "",
    ),
    "threadgroup struct": (
        "struct S { float a; int b; };",
        "threadgroup S s[4];\ns[0].a = 1; y[0] = s[0].a;",
    ),
    "threadgroup vectors": ("", "threadgroup vec<float, 4> t[8];\nt[0] = 1.0f; y[0] = t[0].x;"),
    "threadgroup after the type": ("", "float threadgroup t[8];\nt[0] = 1.0f; y[0] = t[0];"),
    "returns a threadgroup pointer": (
        "threadgroup float* f(threadgroup float* p) { return p + 1; }\n"
        "threadgroup float& g(threadgroup float* p) { return p[1]; }",
        "threadgroup float t[8];\nf(t)[0] = 1; g(t) = 2; y[0] = t[1];",
    ),
    "constant table": ("constant float table[3] = {1, 2, 3};", "y[0] = table[small[0]];"),
    "template recursion": (
        "template <int N> float f(float a) { return a + f<N - 1>(a); }\n"
        "template <> float f<0>(float a) { return a; }",
        "y[0] = f<3>(x[0]);",
    ),
    "overload that calls another": (
        "float f(float a) { return a * a; }\nfloat f(float2 a) { return f(a.x) + f(a.y); }",
        "y[0] = f(x[0]);",
    ),
    "wrapper of Metal's function": (
        "namespace mine { float exp(float a) { return metal::exp(a); } }\n"
        "float tanh(float2 a) { return tanh(a.x); }",
        "y[0] = mine::exp(x[0]) + tanh(float2(x[0], x[1]));",
    ),
    "structs and their members": (
        "struct Two { float a, b; float sum() const { return a + b; } };",
        "Two t{x[0], x[1]}; auto p = (device Two*)y; p[0] = t; t = p[1]; y[0] = t.sum();",
    ),
    "operators": (
        "struct V { float a; };\nV operator+(const thread V& p, const thread V& q) "
        "{ return V{p.a + q.a}; }",
        "V v{x[0]}; y[0] = (v + v).a;",
    ),
    "atomics": (
        "",
        "atomic_fetch_add_explicit(&sum[0], x[0], memory_order_relaxed);\n"
        "threadgroup atomic_int n;\natomic_store_explicit(&n, 0, memory_order_relaxed);\n"
        "int old = atomic_fetch_add_explicit(&n, 1, memory_order_relaxed); y[0] = old;",
    ),
    "simdgroup matrices": (
        "",
        "simdgroup_matrix<float, 8, 8> a, b, c;\nthreadgroup float t[64];\n"
        "simdgroup_load(a, x, 8); simdgroup_load(b, t, 8); "
        "simdgroup_multiply_accumulate(c, a, b, c); simdgroup_store(c, y, 8);",
    ),
    "MLX's helpers": (
        "",
        "auto at = elem_to_loc(3, small, (const constant int64_t*)small, 2);\n"
        "y[0] = x[at] + ceildiv(3, 2) + Limits<float>::min;\nbfloat16_t b = bfloat16_t(x[0]);\n"
        "float16_t h = float16_t(x[0]); y[1] = float(b) + float(h);",
    ),
    "macros": (
        "#define SQUARE(a) ((a) * (a))\n#ifdef UNUSED\ndouble d;\n#endif\n#include <metal_stdlib>\n"
        "using namespace metal;",
        "y[0] = SQUARE(x[0]);",
    ),
    "control flow": (
        "",
        "for (uint i = 0; i < 4; ++i) { if (x[i] > 0) { y[i] = 1; } else { y[i] = 2; } }\n"
        "switch (small[0]) { case 0: { y[0] = 1; break; } default: break; }\n"
        "while (false) { do { y[0] += 1; } while (x[0] < 1); }",
    ),
}


@pytest.mark.emulator
@pytest.mark.parametrize("case", ACCEPTED)
def test_near_misses_are_accepted_without_a_warning(case: str) -> None:
    header, body = ACCEPTED[case]
    result, _ = check(program(body, header))
    assert not result.findings, str(result)
    assert not result.unchecked


# (rule, header, body): Apple's answer is not known, so these only warn.
UNSURE = {
    "pointer to a type parameter": (
        "address-space-missing",
        "template <typename T> float f(T* p) { return p[0]; }@",
        "y[0] = f(x);",
    ),
    "pointer to a pointer": ("address-space-missing", "void f(device float** p);@", ""),
    "auto reference": ("address-space-missing", "", "const auto& a = x[0];@\ny[0] = a;"),
    "cast to a bare pointer": ("address-space-missing", "", "float a;\nauto p = (float*)&a;@"),
    "alias of a bare pointer": ("address-space-missing", "using P = float*;@", ""),
    "long double literal": ("double", "", "y[0] = 1.0L;@"),
    "const at program scope": ("program-scope", "const float c = 2;@", "y[0] = c;"),
    "recursion nobody calls": (
        "recursion",
        "template <typename T>\nT f(T n) { return n > T(0) ? f(n - T(1)) : T(0); }@",
        "",
    ),
}


@pytest.mark.parametrize("case", UNSURE)
def test_unsure_cases_warn(case: str) -> None:
    rule, header, body = UNSURE[case]
    result, line = check(program(body, header))
    assert not result.errors, str(result)
    assert [(each.rule, each.line) for each in result.warnings] == [(rule, line)], str(result)


def recorded(body: str, header: str = "", *, size: int = 16, **template: object) -> str:
    """The text MLX records for a body with inputs `x`, `tiny` (constant) and `scalar`."""
    kernel = mx.fast.metal_kernel(
        name="recorded",
        input_names=["x", "tiny", "scalar"],
        output_names=["y"],
        header=header,
        source=body,
        ensure_row_contiguous=False,
    )

    def graph(x: mx.array, tiny: mx.array, scalar: mx.array) -> mx.array:
        return kernel(
            inputs=[x, tiny, scalar],
            template=list(template.items()),
            grid=(size, 1, 1),
            threadgroup=(size, 1, 1),
            output_shapes=[x.shape],
            output_dtypes=[x.dtype],
        )[0]

    (captured,) = capture(graph, mx.zeros((4, size // 4), mx.bfloat16), mx.zeros(3), mx.array(2.0))
    return captured.text


BODY = """
    uint i = thread_position_in_grid.x;
    auto at = elem_to_loc(i, x_shape, x_strides, x_ndim);
    float v = static_cast<float>(x[at]) * scalar + tiny[i % 3];
    y[i] = static_cast<T>(twice(v) + simd_sum(v) * N);
"""
TWICE = "template <typename U> U twice(U a) { return a + a; }"


def test_text_mlx_generates_passes() -> None:
    for size in (4, 16):
        result = front.examine(recorded(BODY, TWICE, size=size, T=mx.bfloat16, N=3, FLAG=True))
        assert not result.findings, str(result)


@pytest.mark.emulator
def test_kernel_template_is_checked_with_its_arguments() -> None:
    """`T` is known in the instance only: a pointer to it changes its space there."""
    text = recorded("    threadgroup T* p = y;\n    y[0] = x[0];", T=mx.bfloat16)
    (found,) = front.examine(text).errors
    assert found.rule == "address-space-mismatch"
    assert found.source == "threadgroup T* p = y;"
    assert text.splitlines()[found.line - 1].strip() == found.source


@pytest.mark.emulator
def test_errors_after_what_the_check_does_not_know_are_found() -> None:
    text = recorded("    auto a = unknown_function(x[0]);\n    threadgroup T* p = y;", T=mx.float32)
    assert [each.rule for each in front.examine(text).errors] == ["address-space-mismatch"]


@metile.kernel
def reverse(source, destination, ROWS: metile.constexpr, LAYOUT: metile.constexpr):
    inputs = metile.tensor(source, shape=(ROWS, 64), access="read")
    outputs = metile.tensor(destination, shape=(ROWS, 64), access="write")
    row = metile.program_id(0)
    values = inputs.load((row, metile.arange(0, 64)))
    owned = metile.arange(0, 64, layout=LAYOUT)
    outputs.store((row, owned), metile.convert_layout(values, LAYOUT))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint32"])
@pytest.mark.parametrize("basis", [(3, 4, 5, 0, 1, 2), (5, 4, 3, 2, 1, 0)])
def test_our_texts_pass(dtype: str, basis: tuple[int, ...]) -> None:
    x = mx.zeros((4, 64), getattr(mx, dtype))
    prepared = reverse[(4,)].prepare(
        x, metile.empty(x.shape, x.dtype), ROWS=4, LAYOUT=metile.ThreadLayout(basis), target="metal"
    )
    result = front.examine(prepared.msl)
    assert not result.findings, f"{result}\n{prepared.msl}"


def kept(text: str) -> list[tuple[str, str, int]]:
    plain = front_clang.preprocess(text, toolchain.find())
    return [(each.kind, each.text, each.line) for each in tokens(plain)]


@pytest.mark.emulator
@pytest.mark.parametrize(
    "body",
    [
        "y[0] = x[0] * 2.0f;\n\n  y[1] = x[1];",
        "y[0] = x[0]; // of the first\n/* and\n*/ y[1] = x[1];",
        "#define TWICE(a) \\\n  (2 * a)\ny[0] = TWICE(x[0]);\n#undef TWICE\ny[1] = x[1];",
        "#if __METAL_VERSION__ >= 300\ny[0] = x[0];\n#else\ny[0] = x[1];\n#endif",
        "y[0] = __LINE__;\nMLX_MTL_PRAGMA_UNROLL\nfor (int i = 0; i < 2; ++i) y[i] = x[i];",
    ],
)
def test_a_text_without_macros_is_its_own_preprocessed_text(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clang is asked only where it would change something; its answer has the same tokens."""
    text = program(body, '#include "mlx/backend/metal/kernels/utils.h"')
    quick = kept(text)
    monkeypatch.setattr(front_clang, "_PREPROCESSED", re.compile(""))
    assert kept(text) == quick
    assert not {"TWICE", "__LINE__", "MLX_MTL_PRAGMA_UNROLL"} & {word for _, word, _ in quick}


@pytest.mark.emulator
def test_require_raises_with_every_finding_and_the_line() -> None:
    text = program("double a = 1;\nthreadgroup float* p = y;")
    with pytest.raises(CompileError) as caught:
        front.require(text)
    shown = str(caught.value)
    assert caught.value.loc is not None
    assert caught.value.loc.line == 10
    assert "kernel.metal:10:1: error: Metal has no 'double': use float [double]" in shown
    assert "  double a = 1;" in shown
    assert (
        "kernel.metal:11:1: note: cannot initialize a variable of type 'threadgroup float *'"
        in shown
    )


def test_require_hands_back_the_warnings() -> None:
    result = front.require(program("y[0] = 1.0L;"))
    assert [each.rule for each in result.warnings] == ["double"]


def test_without_clang_it_says_so_and_checks_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> None:
        raise BackendError("no clang here")

    monkeypatch.setattr(toolchain, "find", find)
    header = "#define REAL \\\n  double\nint f(int n) { return f(n - 1); }\nvoid g(float* p);"
    result = front.examine(program("double a;\nthreadgroup float* p = y;", header))
    assert [(each.rule, each.line) for each in result.errors] == [
        ("recursion", 3),
        ("address-space-missing", 4),
        ("double", 13),
    ]
    assert "no clang here" in result.unchecked[0]
    assert any("address spaces" in reason for reason in result.unchecked)


def test_a_text_is_checked_in_less_than_a_second() -> None:
    blocks = "\n".join(f"{{ float a = x[{i}]; y[{i}] = a; }}" for i in range(200))
    text = recorded(BODY + blocks, TWICE, T=mx.float32, N=1)
    seconds = []
    for _ in range(3):
        front.examine.cache_clear()
        start = time.perf_counter()
        front.examine(text)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 1, seconds


MLX_KERNELS = Path(mx.__file__).parent / "include" / "mlx" / "backend" / "metal" / "kernels"


@pytest.mark.parametrize(
    "name", ["utils.h", "sort.h", "quantized.h", "steel/gemm/mma.h", "reduction/reduce_col.h"]
)
def test_headers_of_mlx_have_no_error(name: str) -> None:
    """Apple's compiler takes them; alone, as here, what they include is missing."""
    result = front.examine((MLX_KERNELS / name).read_text(encoding="utf-8"))
    assert not result.errors, str(result)
