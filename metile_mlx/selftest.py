"""Every kernel of the library, run and compared: `python -m metile_mlx selftest`.

The checks are those that the modules of `metile_kernels` declare; `metile_kernels/__init__.py` says
how. Each is compiled, held against the limits of its target, run on one backend and compared with
the right result; whatever goes wrong in one is a line of the report and stops no other.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from metile_mlx import doctor
from metile_mlx.backends import BACKENDS
from metile_mlx.dtypes import MLX_NAMES
from metile_mlx.errors import UnsupportedError
from metile_mlx.report import Limit
from metile_mlx.runtime.backend import choose
from metile_mlx.runtime.optional import MLX_MISSING, mx

LIBRARY = "metile_kernels"
FORMAT = 1
PASS, FAIL, NOT_RUN = "pass", "fail", "not run"

# dtype -> bits of the significand, smallest exponent of a normal number.
_FLOATS = {"f32": (24, -126), "bf16": (8, -126), "f16": (11, -14)}


@dataclass
class Outcome:
    """What became of one check.

    Attributes:
        module, name: where it is declared, and its name there.
        status: `pass`, `fail` or `not run`; `message` is the reason of the last two.
        seconds: for compiling, running and comparing.
        elements, differing: of all outputs; `differing` counts elements of other bits, or, where
            ulps are allowed, elements that are further off.
        worst_ulp: the largest distance from the expected value; None where bits are compared.
        allowed_ulp: 0 for equal bits.
        limits: as in the execution report.
        msl_sha256: of the Metal text, the same on every machine.
        msl: the text itself, where the check failed.
    """

    module: str
    name: str
    status: str = NOT_RUN
    message: str = ""
    seconds: float = 0.0
    elements: int = 0
    differing: int = 0
    worst_ulp: float | None = None
    allowed_ulp: float = 0.0
    limits: Sequence[Limit] = ()
    msl_sha256: str = ""
    msl: str = ""


@dataclass
class Findings:
    """All outcomes and where they were made; `to_dict()` is what `--json` writes."""

    backend: str
    device: Mapping[str, str | int] = field(default_factory=dict)
    diagnosis: doctor.Diagnosis | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Something ran and nothing failed."""
        found = {outcome.status for outcome in self.outcomes}
        return PASS in found and FAIL not in found

    def count(self, status: str) -> int:
        """Checks that ended so."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def to_dict(self) -> dict[str, object]:
        """Plain lists, dicts, strings and numbers. No path and no variable of the user's."""
        about: dict[str, object] = {}
        if self.diagnosis is not None:
            about = {
                "versions": dict(self.diagnosis.versions),
                "machine": dict(self.diagnosis.machine),
                "backends": [asdict(state) for state in self.diagnosis.backends],
            }
        return {
            "format": FORMAT,
            "ok": self.ok,
            "backend": self.backend,
            "device": dict(self.device),
            **about,
            "passed": self.count(PASS),
            "failed": self.count(FAIL),
            "not_run": [
                {"module": o.module, "name": o.name, "reason": o.message}
                for o in self.outcomes
                if o.status == NOT_RUN
            ],
            "checks": [asdict(o) for o in self.outcomes if o.status != NOT_RUN],
        }


def run(backend: str | None = None) -> Findings:
    """Run every check on one backend: the one named, else that of a call that names none.

    Raises:
        BackendError, MetileError: the backend named can't run here, or does not exist.
    """
    chosen = choose(backend, None, BACKENDS)
    found = Findings(chosen.name, _device(), doctor.examine())
    # MLX's default device may be a GPU, where the cpu backend does not run.
    with mx.stream(mx.cpu) if chosen.name == "cpu" else nullcontext():
        for module, declared in modules(LIBRARY):
            if isinstance(declared, Outcome):
                found.outcomes.append(declared)
                continue
            for name, make in declared:
                found.outcomes.append(_checked(module, name, make, chosen.name))
    return found


def modules(library: str) -> Iterator[tuple[str, Sequence[Any] | Outcome]]:
    """Each module of the library with the checks it declares, or why there are none."""
    try:
        package = importlib.import_module(library)
    except ImportError as error:
        yield library, Outcome(library, "all", NOT_RUN, f"{library} can't be imported: {error}")
        return
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("_"):
            # What kernels share.
            continue
        try:
            module = importlib.import_module(f"{library}.{info.name}")
        except Exception as error:
            yield info.name, Outcome(info.name, "import", FAIL, _explained(error))
            continue
        yield info.name, _declared(info.name, module)


def _declared(name: str, module: ModuleType) -> Sequence[Any] | Outcome:
    checks = getattr(module, "SELFTESTS", None)
    if not checks:
        return Outcome(name, "all", NOT_RUN, "the module declares no SELFTESTS")
    return list(checks)


def _checked(module: str, name: str, make: Any, backend: str) -> Outcome:
    """One check, whatever it does."""
    found = Outcome(module, name)
    start = perf_counter()
    dispatch: Any = None
    try:
        dispatch, arguments, expected, ulps = make(backend)
        found.allowed_ulp = float(ulps)
        found.limits = tuple(dispatch.execution_report.limits)
        found.msl_sha256 = hashlib.sha256(dispatch.msl.encode()).hexdigest()
        made = dispatch(*arguments)
        got = made if isinstance(made, tuple) else (made,)
        wanted = expected if isinstance(expected, tuple) else (expected,)
        for number, (one, right) in enumerate(zip(got, wanted, strict=True)):
            _compare(found, one, right, f"output {number}" if len(got) > 1 else "the output")
        found.status = FAIL if found.message else PASS
    except UnsupportedError as error:
        found.message = _explained(error)
    except Exception as error:
        # A broken check is a finding like any other.
        found.status, found.message = FAIL, _explained(error)
    if found.status == FAIL and dispatch is not None and found.msl_sha256:
        found.msl = dispatch.msl
    found.seconds = perf_counter() - start
    return found


def _explained(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{last.filename.rsplit('/', 1)[-1]}:{last.lineno}"
    return f"{type(error).__name__} at {where}: {error}"


def _compare(found: Outcome, got: mx.array, expected: Any, what: str) -> None:
    """Add to `found` how `got` differs from what is expected."""
    if tuple(got.shape) != tuple(expected.shape):
        found.message = f"{what} has shape {tuple(got.shape)}, not {tuple(expected.shape)}"
        return
    if found.allowed_ulp == 0:
        if got.dtype != expected.dtype:
            found.message = f"{what} is {got.dtype}, not {expected.dtype}"
            return
        wrong = _bits(got) != _bits(expected)
    else:
        distance = ulps_between(got, np.asarray(expected, np.float64))
        found.worst_ulp = max(found.worst_ulp or 0.0, float(distance.max(initial=0.0)))
        wrong = distance > found.allowed_ulp
    found.elements += wrong.size
    found.differing += int(wrong.sum())
    if wrong.any() and not found.message:
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        found.message = (
            f"{what} is wrong in {int(wrong.sum())} of {wrong.size} elements, first at {place}: "
            f"{got[place].item()}, expected {expected[place].item()}"
        )


def _bits(x: mx.array) -> npt.NDArray[Any]:
    x = mx.contiguous(x)
    if x.dtype == mx.bfloat16:
        return np.array(x.view(mx.uint16))
    values = np.array(x)
    return values.view(f"u{values.itemsize}")


def ulps_between(got: mx.array, expected: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Distances from float64 values, in units in the last place of the dtype of `got` there.

    Equal infinities and two NaN are 0 apart, any other pair with one of them infinitely far.
    """
    digits, smallest = _FLOATS[MLX_NAMES[str(got.dtype).rpartition(".")[2]].name]
    values = np.array(got.astype(mx.float32)).astype(np.float64)
    exponent = np.frexp(np.where(np.isfinite(expected), expected, 1.0))[1] - 1
    exponent = np.where(expected == 0, smallest, np.maximum(exponent, smallest))
    with np.errstate(invalid="ignore"):
        distance = np.abs(values - expected) / np.exp2(exponent - (digits - 1.0))
    same = (values == expected) | (np.isnan(values) & np.isnan(expected))
    return np.where(same, 0.0, np.where(np.isnan(distance), np.inf, distance))


def _device() -> dict[str, str | int]:
    return {} if MLX_MISSING else dict(mx.device_info())


def to_json(found: Findings) -> str:
    """The findings as JSON."""
    return json.dumps(found.to_dict(), indent=2)


def render(found: Findings) -> str:
    """The findings as a table."""
    rows = [("module", "check", "result", "worst ulp", "threads of the pipeline", "seconds")]
    for o in found.outcomes:
        off = "" if o.worst_ulp is None else f"{o.worst_ulp:.2f} of {o.allowed_ulp:g}"
        rows.append((o.module, o.name, o.status, off, _pipeline(o.limits), f"{o.seconds:.2f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    lines += [
        f"\n{o.status}: {o.module}: {o.name}\n  " + o.message.replace("\n", "\n  ")
        for o in found.outcomes
        if o.status != PASS
    ]
    lines += [f"\nnot checked: {note}" for note in _unchecked(found.outcomes)]
    name = found.device.get("device_name", "unknown device")
    lines.append(
        f"\nbackend {found.backend} on {name}: {found.count(PASS)} passed, "
        f"{found.count(FAIL)} failed, {found.count(NOT_RUN)} not run"
    )
    return "\n".join(lines)


def _pipeline(limits: Sequence[Limit]) -> str:
    """Threads of the last limit of that name: the pipeline's own where there is one."""
    for limit in reversed(limits):
        if limit.name in ("maxTotalThreadsPerThreadgroup", "threads per threadgroup"):
            return f"{limit.requested} of {limit.allowed}" + (
                "" if limit.checked else ", unchecked"
            )
    return ""


def _unchecked(outcomes: Sequence[Outcome]) -> list[str]:
    """Each limit that was not checked, with the reason, once."""
    return sorted({f"{x.name}: {x.note}" for o in outcomes for x in o.limits if not x.checked})
