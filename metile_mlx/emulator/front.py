"""The strict front: MSL that Apple's compiler rejects is rejected here, before it is emulated.

Emulated text is compiled as C++, which is more lenient than Metal in the ways below. A text that
breaks one of these rules would run here and fail on a Mac:

- `double` (rule `double`);
- a pointer or reference without an address space (`address-space-missing`);
- a pointer that drops or changes its address space (`address-space-mismatch`);
- a vector that becomes another type implicitly (`vector-conversion`);
- a `threadgroup` variable outside kernels (`threadgroup-scope`);
- recursion (`recursion`).

Where the check can't be sure it warns. Variables at program scope outside `constant` are only
warned of (`program-scope`).
"""

from __future__ import annotations

import functools
import subprocess
from dataclasses import dataclass

from metile_mlx.emulator import front_clang, front_pointers, front_rules, toolchain
from metile_mlx.emulator.front_rules import FrontFinding, Parsed
from metile_mlx.errors import BackendError, CompileError, Loc
from metile_mlx.runtime.toolchain import Toolchain

# A user function of such a name may call Metal's function of the same name, not itself.
BUILTINS = frozenset(
    [
        *[
            "abs",
            "acos",
            "acosh",
            "asin",
            "asinh",
            "atan",
            "atan2",
            "atanh",
            "ceil",
            "clamp",
            "clz",
        ],
        *["copysign", "cos", "cosh", "cross", "ctz", "distance", "dot", "exp", "exp10", "exp2"],
        *[
            "fabs",
            "floor",
            "fma",
            "fmax",
            "fmin",
            "fmod",
            "fract",
            "length",
            "log",
            "log10",
            "log2",
        ],
        *["max", "min", "mix", "mulhi", "normalize", "popcount", "pow", "powr", "rint", "round"],
        *[
            "rsqrt",
            "saturate",
            "select",
            "sign",
            "sin",
            "sinh",
            "smoothstep",
            "sqrt",
            "step",
            "tan",
        ],
        *["tanh", "trunc", "all", "any", "simd_sum", "simd_max", "simd_min", "simd_product"],
        *["simd_shuffle", "simd_shuffle_xor", "simd_shuffle_up", "simd_shuffle_down"],
        *["simd_broadcast", "simd_broadcast_first", "as_type", "ceildiv", "elem_to_loc"],
    ]
)


@dataclass(frozen=True)
class FrontResult:
    """What the strict front says of a text.

    Attributes:
        findings: by line.
        unchecked: what could not be checked, and why; empty where clang is installed.
    """

    findings: tuple[FrontFinding, ...]
    unchecked: tuple[str, ...]

    @property
    def errors(self) -> tuple[FrontFinding, ...]:
        """What Apple's compiler rejects."""
        return tuple(each for each in self.findings if each.severity == "error")

    @property
    def warnings(self) -> tuple[FrontFinding, ...]:
        """What it may reject."""
        return tuple(each for each in self.findings if each.severity == "warning")

    def __str__(self) -> str:
        rows = [str(finding) for finding in self.findings]
        return "\n".join([*rows, *(f"not checked: {reason}" for reason in self.unchecked)])


@functools.lru_cache(maxsize=1024)
def examine(text: str) -> FrontResult:
    """Checks a complete MSL text, for instance one MLX recorded. Each text is checked once.

    Line numbers are those of `text`.
    """
    compiler = _compiler()
    unchecked: list[str] = []
    plain = None
    if isinstance(compiler, Toolchain):
        try:
            plain = front_clang.preprocess(text, compiler)
        except subprocess.CalledProcessError as error:
            unchecked.append(f"macros: clang's preprocessor failed: {error.stderr.strip()}")
    else:
        unchecked += [
            f"macros are not expanded: {compiler}",
            "address spaces that change, vectors that change, calls of overloads: clang is missing",
        ]
    parsed = Parsed(front_clang.without_clang(text) if plain is None else plain, text)
    found = [
        *front_rules.doubles(parsed),
        *front_rules.threadgroup_scope(parsed),
        *front_rules.program_scope(parsed),
        *front_pointers.missing(parsed),
        *_recursion(parsed, compiler if isinstance(compiler, Toolchain) else None),
    ]
    if isinstance(compiler, Toolchain):
        found += front_clang.check_types(parsed, compiler)
    found.sort(key=lambda each: (each.line, each.severity))
    return FrontResult(tuple(dict.fromkeys(found)), tuple(unchecked))


def require(text: str, name: str = "kernel.metal") -> FrontResult:
    """Checks a text.

    Raises:
        CompileError: Apple's compiler rejects it; has every finding, at the first one's line.
    """
    result = examine(text)
    if result.errors:
        first, *others = result.errors
        loc = Loc(name, first.line, 1, len(first.source) + 1, first.source)
        error = CompileError(f"{first.message} [{first.rule}]", loc)
        for other in others:
            where = Loc(name, other.line, 1, len(other.source) + 1, other.source)
            error.notes.append((f"{other.message} [{other.rule}]", where))
        raise error
    return result


def _compiler() -> Toolchain | str:
    try:
        return toolchain.find()
    except BackendError as error:
        return error.message


def _recursion(parsed: Parsed, compiler: Toolchain | None) -> list[FrontFinding]:
    out = []
    for cycle in front_rules.cycles(parsed, BUILTINS):
        path = " -> ".join([*cycle.names, cycle.names[0]])
        verdict: bool | None = True
        if not cycle.is_certain:
            verdict = front_clang.resolve(parsed, cycle, compiler) if compiler else None
        if verdict:
            message = f"recursion, which Metal does not have: {path}"
            out.append(parsed.finding("recursion", "error", message, cycle.line))
        elif verdict is None and cycle.is_direct:
            message = f"these calls may be recursion: {path}"
            out.append(parsed.finding("recursion", "warning", message, cycle.line))
    return out
