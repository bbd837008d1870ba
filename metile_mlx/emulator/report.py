"""What the checker found in a kernel, as typed facts and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from metile_mlx.errors import MetileError

Position = tuple[int, int, int]


class Fault(Enum):
    """What is wrong. The order is that of `metile_fault` in abi.h."""

    RACE = "data race"
    BOUNDS = "out of bounds"
    UNINITIALISED = "read of uninitialised memory"
    DIVERGENT_BARRIER = "barrier not reached by all threads"
    DIVERGENT_SIMD = "simdgroup operation not reached by all lanes"
    INACTIVE_LANE = "read of an inactive lane"
    UNWRITTEN = "output never written"
    MISALIGNED = "misaligned access"
    CRASH = "crash"
    SCHEDULE = "result depends on the order of threads"
    THREADGROUP_MEMORY = "too much threadgroup memory"


class Access(Enum):
    """How a thread touched memory. The order is that of `metile_access` in abi.h."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic"
    NONE = "none"


@dataclass(frozen=True)
class Thread:
    """A thread: its threadgroup's position in the grid and its index in the threadgroup."""

    group: Position
    index: int

    @property
    def simdgroup(self) -> int:
        return self.index // 32

    @property
    def lane(self) -> int:
        return self.index % 32

    def __str__(self) -> str:
        place = f"thread {self.index} (simdgroup {self.simdgroup}, lane {self.lane})"
        return f"{place} of threadgroup {self.group}"


@dataclass(frozen=True)
class Finding:
    """One fault at one place of a kernel: its first occurrence.

    Attributes:
        kernel: the kernel's name.
        fault: what is wrong.
        access: how `thread` touched the array.
        thread: who; None for an output that nobody wrote.
        other_access: how `other` touched it (races only).
        other: the thread it races with, or that is missing at a barrier.
        array: the buffer or threadgroup variable, empty where none is concerned.
        index: element of the array; of `read of an inactive lane` the lane.
        count: how often it occurred; of `output never written` the number of elements.
        line: in the kernel's text, 0 where it is not known.
        message: the whole as a sentence.
    """

    kernel: str
    fault: Fault
    access: Access
    thread: Thread | None
    other_access: Access
    other: Thread | None
    array: str
    index: int
    count: int
    line: int
    message: str

    def __str__(self) -> str:
        where = f"{self.kernel}:{self.line}" if self.line else self.kernel
        return f"{where}: {self.message}"


@dataclass(frozen=True)
class Report:
    """All findings of the kernels that ran, and how many launches ran. Falsy where clean."""

    findings: tuple[Finding, ...]
    launches: int
    texts: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.findings)

    def __str__(self) -> str:
        if not self.findings:
            return f"{self.launches} launches checked: nothing found"
        lines = [f"{self.launches} launches checked: {len(self.findings)} findings"]
        for finding in self.findings:
            lines.append(str(finding))
            lines += self._excerpt(finding)
        return "\n".join(lines)

    def _excerpt(self, finding: Finding) -> list[str]:
        text = dict(self.texts).get(finding.kernel, "").splitlines()
        if not 0 < finding.line <= len(text):
            return []
        return [f"  {finding.line} | {text[finding.line - 1]}"]


class EmulatorError(MetileError):
    """A checked kernel has faults.

    Attributes:
        report: the findings.
    """

    def __init__(self, report: Report) -> None:
        super().__init__(str(report))
        self.report = report


_SENTENCES = {
    Fault.RACE: "data race on {space} memory {element}: {access} by {thread}, unordered with the "
    "{other_access} by {other}",
    Fault.BOUNDS: "out of bounds: {access} of {element}, which has {size} elements, by {thread}",
    Fault.UNINITIALISED: "{access} of {space} memory {element}, which nothing has written, by "
    "{thread}",
    Fault.DIVERGENT_BARRIER: "{thread} waits at a threadgroup_barrier that {other} does not reach: "
    "it {detail}",
    Fault.DIVERGENT_SIMD: "{thread} is at {detail}, and {other} is not",
    Fault.INACTIVE_LANE: "{detail} by {thread} reads lane {byte_offset}, which is not active",
    Fault.UNWRITTEN: "{missing} of {size} elements of output {array} are never written, first "
    "{element}",
    Fault.MISALIGNED: "access to {detail} at byte {byte_offset} of {array}, which is not a "
    "multiple of {bytes}, by {thread}",
    Fault.CRASH: "the kernel crashed: {detail}, in {thread}",
    Fault.SCHEDULE: "{element} differs in {detail}",
    Fault.THREADGROUP_MEMORY: "{bytes} bytes of threadgroup memory with {array}; devices have "
    "32768",
}
_PRIVATE_INDEX = "index {byte_offset} is out of bounds of {detail}, in {thread}"
_INPUT_WRITTEN = "{detail}: {element}, by {thread}"


def describe(raw: dict[str, object]) -> str:
    """The sentence of a finding as the runtime hands it over."""
    fault = tuple(Fault)[_int(raw, "fault")]
    item = max(1, _int(raw, "item_bytes"))
    # clang adds what a type is an alias of.
    detail = str(raw["detail"]).partition(" (aka")[0]
    sentence = _SENTENCES[fault]
    if fault is Fault.BOUNDS and detail:
        sentence = _INPUT_WRITTEN if raw["array"] else _PRIVATE_INDEX
    words = {
        "thread": who(raw, ""),
        "other": who(raw, "other_"),
        "access": access_of(raw, "access").value,
        "other_access": access_of(raw, "other_access").value,
        "space": "threadgroup" if raw["is_threadgroup"] else "device",
        "element": f"{raw['array']}[{index_of(raw)}]",
        "size": _int(raw, "array_bytes") // item,
        "missing": _int(raw, "bytes") // item,
        "detail": detail,
    }
    return sentence.format_map({**raw, **words})


def _int(raw: dict[str, object], key: str) -> int:
    value = raw[key]
    assert isinstance(value, int)
    return value


def index_of(raw: dict[str, object]) -> int:
    """The element an offset falls in; below zero before the array."""
    return _int(raw, "byte_offset") // max(1, _int(raw, "item_bytes"))


def access_of(raw: dict[str, object], key: str) -> Access:
    return tuple(Access)[_int(raw, key)]


def who(raw: dict[str, object], prefix: str) -> Thread | None:
    """The thread of a finding; None where it names none."""
    index = _int(raw, f"{prefix}thread")
    group = raw[f"{prefix}group"]
    assert isinstance(group, tuple)
    return None if index == 0xFFFFFFFF else Thread(group, index)


def finding(kernel: str, raw: dict[str, object], line: int) -> Finding:
    """A finding as the runtime hands it over; `line` where the compiler's tables know more."""
    fault = tuple(Fault)[_int(raw, "fault")]
    count = _int(raw, "count")
    index = index_of(raw)
    if fault is Fault.UNWRITTEN:
        count = _int(raw, "bytes") // max(1, _int(raw, "item_bytes"))
    if fault is Fault.INACTIVE_LANE:
        index = _int(raw, "byte_offset")
    return Finding(
        kernel,
        fault,
        access_of(raw, "access"),
        who(raw, ""),
        access_of(raw, "other_access"),
        who(raw, "other_"),
        str(raw["array"]),
        index,
        count,
        _int(raw, "line") or line,
        describe(raw),
    )


def merged(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Without the repetitions that several launches of one kernel bring."""
    seen: dict[object, Finding] = {}
    for each in findings:
        key = (each.kernel, each.fault, each.access, each.other_access, each.array, each.line)
        seen.setdefault(key, each)
    return tuple(seen.values())
