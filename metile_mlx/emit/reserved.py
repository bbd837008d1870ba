"""Identifiers emitted text must avoid, and how a Python name becomes a legal one (SPEC X1, F06).

MLX does not parse the body of a metal kernel, it searches it for substrings. An attribute name that
occurs anywhere in the body (in a longer identifier, in a comment) becomes a parameter of the
kernel; `<input>_shape`, `<input>_strides` and `<input>_ndim` bind one more buffer each. So an
identifier may not *contain* such a name, while the keywords and library names below are only
forbidden as a whole.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

# In the order in which MLX writes them into the signature.
ATTRIBUTES: Mapping[str, str] = MappingProxyType(
    {
        "dispatch_quadgroups_per_threadgroup": "uint",
        "dispatch_simdgroups_per_threadgroup": "uint",
        "dispatch_threads_per_threadgroup": "uint3",
        "grid_origin": "uint3",
        "grid_size": "uint3",
        "quadgroup_index_in_threadgroup": "uint",
        "quadgroups_per_threadgroup": "uint",
        "simdgroup_index_in_threadgroup": "uint",
        "simdgroups_per_threadgroup": "uint",
        "thread_execution_width": "uint",
        "thread_index_in_quadgroup": "uint",
        "thread_index_in_simdgroup": "uint",
        "thread_index_in_threadgroup": "uint",
        "thread_position_in_grid": "uint3",
        "thread_position_in_threadgroup": "uint3",
        "threadgroup_position_in_grid": "uint3",
        "threadgroups_per_grid": "uint3",
        "threads_per_grid": "uint3",
        "threads_per_simdgroup": "uint",
        "threads_per_threadgroup": "uint3",
    }
)
INPUT_SUFFIXES = ("_shape", "_strides", "_ndim")

_CPP = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class co_await co_return co_yield compl concept const const_cast consteval constexpr
    constinit continue decltype default delete do double dynamic_cast else enum explicit export
    extern false final float for friend goto if import inline int long module mutable namespace new
    noexcept not not_eq nullptr operator or or_eq override private protected public register
    reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast
    struct switch template this thread_local throw true try typedef typeid typename typeof union
    unsigned using virtual void volatile wchar_t while xor xor_eq std main defined assert errno
    offsetof setjmp va_arg va_copy va_end va_start linux unix i386 int8_t int16_t int32_t int64_t
    uint8_t uint16_t uint32_t uint64_t intptr_t uintptr_t intmax_t uintmax_t stdin stdout stderr
    putchar getchar isgreater isgreaterequal isless islessequal islessgreater NULL EOF BUFSIZ
    RAND_MAX CHAR_BIT CHAR_MAX CHAR_MIN SCHAR_MAX SCHAR_MIN UCHAR_MAX SHRT_MAX SHRT_MIN USHRT_MAX
    INT_MAX INT_MIN UINT_MAX LONG_MAX LONG_MIN ULONG_MAX LLONG_MAX LLONG_MIN ULLONG_MAX SIZE_MAX
    threadIdx blockIdx blockDim gridDim warpSize
"""

_MSL_WORDS = """
    metal fast precise kernel vertex fragment mesh object visible stitchable intersection ray_data
    object_data device constant thread threadgroup threadgroup_imageblock half bfloat uchar ushort
    uint ulong size_t ptrdiff_t float16_t bfloat16_t vec matrix packed_vec array array_ref span
    tensor sampler texture buffer color position origin coord filter address access level bias
    gradient2d gradient3d gradientcube min_lod_clamp texture1d texture1d_array texture2d
    texture2d_array texture2d_ms texture2d_ms_array texture3d texturecube texturecube_array
    texture_buffer depth2d depth2d_array depth2d_ms depth2d_ms_array depthcube depthcube_array
    imageblock atomic atomic_int atomic_uint atomic_bool atomic_ulong atomic_float numeric_limits
    pair tuple as_type complex uniform mem_flags mem_none mem_device mem_threadgroup mem_texture
    mem_threadgroup_imageblock memory_order memory_order_relaxed memory_scope thread_scope
    thread_scope_thread thread_scope_simdgroup thread_scope_threadgroup thread_scope_device vote
    simd_vote quad_vote os_log os_log_default simdgroup_matrix simdgroup_half8x8 simdgroup_float8x8
    simdgroup_bfloat8x8 simdgroup_load simdgroup_store simdgroup_multiply
    simdgroup_multiply_accumulate make_filled_simdgroup_matrix simdgroup_event simdgroup_barrier
    threadgroup_barrier atomic_thread_fence simdgroup quadgroup integral_constant true_type
    false_type enable_if enable_if_t conditional conditional_t is_same is_same_v is_integral
    is_integral_v is_floating_point is_floating_point_v is_convertible is_convertible_v remove_cv
    remove_cv_t remove_const remove_reference declval common_type underlying_type make_signed
    make_unsigned make_unsigned_t make_signed_t forward move swap get tie command_buffer
    compute_command render_command visible_function_table intersector ray acceleration_structure
"""

_MSL_FUNCTIONS = """
    acos acosh asin asinh atan atan2 atanh ceil copysign cos cosh cospi divide erf erfc exp exp2
    exp10 expm1 fabs abs fdim floor fma fmax fmax3 fmedian3 fmin fmin3 fmod fract frexp hypot ilogb
    ldexp lgamma log log2 log10 log1p logb max max3 median3 min min3 modf nan nextafter pow powr
    remainder rint round rsqrt sin sincos sinh sinpi sqrt tan tanh tanpi tgamma trunc nearbyint sign
    clamp mix saturate smoothstep step absdiff addsat clz ctz extract_bits hadd insert_bits mad24
    madhi madsat mul24 mulhi popcount reverse_bits rhadd rotate subsat all any isfinite isinf isnan
    isnormal isordered isunordered select signbit cross distance distance_squared dot faceforward
    length length_squared normalize reflect refract determinant transpose dfdx dfdy fwidth
    discard_fragment barrier pack_float_to_snorm4x8 pack_float_to_unorm4x8 pack_half_to_snorm4x8
    pack_half_to_unorm4x8 unpack_snorm4x8_to_float unpack_unorm4x8_to_float unpack_snorm4x8_to_half
    unpack_unorm4x8_to_half atomic_store_explicit atomic_load_explicit atomic_exchange_explicit
    atomic_fetch_add_explicit atomic_fetch_and_explicit atomic_fetch_max_explicit
    atomic_fetch_min_explicit atomic_fetch_or_explicit atomic_fetch_sub_explicit
    atomic_fetch_xor_explicit atomic_compare_exchange_weak_explicit atomic_max_explicit
    atomic_min_explicit
"""

# Each exists with the prefix `simd_` and the prefix `quad_`.
_MSL_GROUP_FUNCTIONS = """
    all any ballot active_threads_mask and broadcast broadcast_first is_first is_helper_thread max
    min or prefix_exclusive_product prefix_exclusive_sum prefix_inclusive_product
    prefix_inclusive_sum product shuffle shuffle_and_fill_down shuffle_and_fill_up shuffle_down
    shuffle_rotate_down shuffle_rotate_up shuffle_up shuffle_xor sum xor
"""

_MSL_MACROS = """
    INFINITY NAN MAXFLOAT MAXHALF MAXBFLOAT HUGE_VAL HUGE_VALF HUGE_VALH HUGE_VALBF FLT_DIG
    FLT_EPSILON FLT_MANT_DIG FLT_MAX FLT_MAX_10_EXP FLT_MAX_EXP FLT_MIN FLT_MIN_10_EXP FLT_MIN_EXP
    FLT_RADIX DBL_DIG DBL_EPSILON DBL_MANT_DIG DBL_MAX DBL_MAX_EXP DBL_MIN DBL_MIN_EXP
    HALF_DIG HALF_EPSILON HALF_MANT_DIG HALF_MAX HALF_MAX_10_EXP HALF_MAX_EXP HALF_MIN
    HALF_MIN_10_EXP HALF_MIN_EXP HALF_RADIX BFLT_DIG BFLT_EPSILON BFLT_MANT_DIG BFLT_MAX
    BFLT_MAX_10_EXP BFLT_MAX_EXP BFLT_MIN BFLT_MIN_10_EXP BFLT_MIN_EXP BFLT_RADIX FP_ILOGB0
    FP_ILOGBNAN FP_NAN FP_INFINITE FP_ZERO FP_SUBNORMAL FP_NORMAL METAL_FUNC METAL_ALIGN
    METAL_CONST_ARG METAL_VALID_LEVEL_ARG METAL_INTERNAL METAL_ENABLE_IF
"""

# Roots of the constants that exist as M_<root>, M_<root>_F, M_<root>_H and M_<root>_BF.
_MSL_CONSTANTS = "E LOG2E LOG10E LN2 LN10 PI PI_2 PI_4 1_PI 2_PI 2_SQRTPI SQRT2 SQRT1_2"

# Names that MLX's own prelude (`metal::utils()`) defines before every kernel.
_MLX_PRELUDE = """
    mlx Limits WorkPerThread LoopedElemToLoc ConditionalType complex_t complex32_t complex64_t
    MTL_CONST MLX_MTL_PRAGMA_UNROLL instantiate_kernel instantiate_default_limit
    instantiate_float_limit instantiate_metal_math_funcs instantiate_metal_simd_comm_funcs
    instantiate_metal_simd_reduction_funcs MAX_REDUCE_SPECIALIZED_DIMS REDUCE_N_READS
    REDUCE_N_WRITES SOFTMAX_N_READS RMS_N_READS RMS_LOOPED_LIMIT CROSS_ENTROPY_N_READS is_complex_v
    is_lane_convertible_v bfloat16_to_uint16 uint16_to_bfloat16 cast_to ceildiv elem_to_loc
    elem_to_loc_1 elem_to_loc_2 elem_to_loc_3 elem_to_loc_2_nd elem_to_loc_3_nd schedule_row_tile
    MLX_METAL_JIT
"""


_SCALARS = "bool char uchar short ushort int uint long ulong half bfloat float"


def _vector_types() -> Iterable[str]:
    for scalar in _SCALARS.split():
        for width in "234":
            yield scalar + width
            yield f"packed_{scalar}{width}"
    for scalar in ("half", "bfloat", "float"):
        yield from (f"{scalar}{columns}x{rows}" for columns in "234" for rows in "234")


RESERVED: frozenset[str] = frozenset(
    [
        *_CPP.split(),
        *_MSL_WORDS.split(),
        *_MSL_FUNCTIONS.split(),
        *_MSL_MACROS.split(),
        *_MLX_PRELUDE.split(),
        *_vector_types(),
        *(f"simd_{name}" for name in _MSL_GROUP_FUNCTIONS.split()),
        *(f"quad_{name}" for name in _MSL_GROUP_FUNCTIONS.split()),
        *(f"M_{root}{tail}" for root in _MSL_CONSTANTS.split() for tail in ("", "_F", "_H", "_BF")),
    ]
)

_GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (?:FINAL )?(\w+)")


def _transliterate(char: str) -> str:
    """ASCII for a character: itself, its base letter, a Greek letter's name, `u` and its code."""
    if char.isascii():
        return char if char.isalnum() or char == "_" else "_"
    base = "".join(c for c in unicodedata.normalize("NFKD", char) if not unicodedata.combining(c))
    if base.isascii() and base.isalnum():
        return base
    greek = _GREEK.match(unicodedata.name(base[:1] or char, ""))
    if greek:
        # Unicode spells it LAMDA; everyone else does not.
        letter = greek[2].lower().replace("lamda", "lambda")
        return letter if greek[1] == "SMALL" else letter.capitalize()
    return f"u{ord(char):04x}"


def ascii_identifier(text: str) -> str:
    """A readable ASCII identifier for any text: `été` -> `ete`, `<lambda>` -> `lambda`.

    No double underscore, none at the start, never empty. Deterministic; reserved words are not
    looked at.
    """
    name = re.sub("_+", "_", "".join(map(_transliterate, text))).lstrip("_")
    return name if name[:1].isalpha() else f"v{name}"


def attributes_in(text: str) -> tuple[str, ...]:
    """The attributes that MLX would declare for a kernel with this body, in its order."""
    return tuple(attribute for attribute in ATTRIBUTES if attribute in text)


def shape_arguments_in(text: str, inputs: Iterable[str]) -> tuple[str, ...]:
    """The `<input>_shape`, `_strides`, `_ndim` buffers MLX would add for this body."""
    names = (name + suffix for name in inputs for suffix in INPUT_SUFFIXES)
    return tuple(name for name in names if name in text)


def _scanned(name: str, inputs: Collection[str] | None) -> str | None:
    """A substring of `name` that MLX would take for an attribute or a shape argument, or None."""
    for attribute in ATTRIBUTES:
        if attribute in name:
            return attribute
    if inputs is None:
        # The names of the inputs are not settled yet, so anything may precede the suffix.
        return next((suffix for suffix in INPUT_SUFFIXES if suffix in name), None)
    return next(iter(shape_arguments_in(name, inputs)), None)


def is_legal(name: str, inputs: Collection[str] | None = None) -> bool:
    """Whether emitted text may use this identifier; `inputs` as in `legal_identifier`."""
    return (
        re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) is not None
        and "__" not in name
        and name not in RESERVED
        and _scanned(name, inputs) is None
    )


def legal_identifier(
    name: str, taken: Collection[str] = (), inputs: Collection[str] | None = None
) -> str:
    """The identifier that stands for a Python name in emitted text (SPEC X1, F06).

    `half` -> `half_`, `grid_size` -> `gridsize`, `x_shape` -> `xshape` where `x` is an input, `λ`
    -> `lambda`; a name that is taken gets a number: `x` -> `x_2`. Deterministic.

    Args:
        name: any text; a legal name that is not taken comes back unchanged.
        taken: identifiers already in use.
        inputs: final names of the kernel's inputs. None while the inputs themselves are being
            named: then no shape suffix is let through at all.
    """
    stem = ascii_identifier(name)
    while (found := _scanned(stem, inputs)) is not None:
        # Each round removes one underscore from the stem, so this ends.
        stem = stem.replace(found, "".join(found.rpartition("_")[::2]), 1)
    candidate, number = (f"{stem.rstrip('_')}_" if stem in RESERVED else stem), 2
    while candidate in taken or not is_legal(candidate, inputs):
        candidate = f"{stem.rstrip('_')}_{number}"
        number += 1
    return candidate
