"""The execution report (SPEC E): typed facts a compilation states about itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from metile_mlx.errors import Loc


@dataclass(frozen=True)
class ValueLayout:
    """Who owns a value. `stated` is False for the identity given to an unannotated tile."""

    value: str
    dtype: str
    layout: str
    stated: bool
    where: str


@dataclass(frozen=True)
class ConversionCost:
    """One way to carry out a conversion, and what it costs (layout/costs.py; `total` weighs it).

    `mechanism`: registers, shuffle, threadgroup (everything through threadgroup memory) or partial
    (only what crosses simdgroups). Conflicts are the turns that an access takes; 1 is none.
    """

    mechanism: str
    shuffles: int
    selects: int
    stores: int
    loads: int
    barriers: int
    rounds: int
    scratch_bytes: int
    write_conflicts: int
    read_conflicts: int
    groups_gained: int
    total: int


@dataclass(frozen=True)
class LayoutConversion:
    """One convert_layout.

    `mechanism`: unchanged, or as in ConversionCost. `cost` is that of the chosen lowering, None
    where nothing moves; `candidates` are all there were, and `reason` says why this one.
    """

    value: str
    result: str
    dtype: str
    source: str
    destination: str
    mechanism: str
    where: str
    scratch: str | None = None
    lane_rule: str | None = None
    barriers: int = 0
    cost: ConversionCost | None = None
    candidates: list[ConversionCost] = field(default_factory=list)
    reason: str = ""


@dataclass(frozen=True)
class LayoutOptimization:
    """What simplify_layouts made of one convert_layout, and why that is the same (SPEC S3).

    `kind` says what became of `value`, the result of the conversion:

        identity      it has the owners of what is converted: no conversion
        inverse       the conversions before it and this one lead back to where they began
        repeated      an earlier conversion of the same tile has these owners
        composed      it is converted from `replacement`, another copy of the same tile
        intermediate  only conversions read it, and they read others now
        uniform       its elements are one scalar, so its new owners have it too
        unused        no effect depends on it

    `replacement` is what is used in its place, or read by it if composed. `barriers_removed` is by
    how many the barriers of this one conversion became fewer; the sum over all facts never is
    negative.
    """

    kind: str
    value: str
    replacement: str
    proof: str
    where: str
    barriers_removed: int


@dataclass(frozen=True)
class RegisterReduction:
    """A reduction over registers and threads, of a whole tile or along `axis`.

    `shuffles`: values exchanged between lanes, where rows are shorter than a simdgroup.
    """

    op: str
    dtype: str
    threads: int
    registers: int
    scratch: str | None
    axis: int | None = None
    shuffles: int = 0


@dataclass(frozen=True)
class GroupedAccess:
    """One guarded group of memory accesses in the emitted text, not a hardware instruction."""

    tensor: str
    dtype: str
    width: int
    where: str


@dataclass(frozen=True)
class Allocation:
    """Threadgroup memory."""

    scratch: str
    dtype: str
    elements: int
    bytes: int


@dataclass(frozen=True)
class PipelineBuffer:
    """Memory of one tile of a pipeline: `elements` of `dtype`, `bytes` of all its slots.

    Conflicts are the turns that copies and products take at the banks of it; 1 is none.
    """

    value: str
    dtype: str
    elements: int
    bytes: int
    scratch: str
    store_conflicts: int
    load_conflicts: int


@dataclass(frozen=True)
class PipelinePhase:
    """A phase of a pipeline: how many tiles it copies and products it does, and its barriers."""

    name: str
    copies: int
    products: int
    barriers: list[str]


@dataclass(frozen=True)
class Pipeline:
    """A software pipeline (SPEC P2), or a loop that hands operands over and has become none.

    `slots` of each buffer: 2 copy the tiles of the next step while this one's are read; 0 where
    `declined` says why the loop stays as it is. `barriers`: of each step after the first copies.
    """

    loop: str
    slots: int
    barriers: int
    buffers: list[PipelineBuffer] = field(default_factory=list)
    phases: list[PipelinePhase] = field(default_factory=list)
    declined: str = ""


@dataclass(frozen=True)
class Coverage:
    """Whether every element of an output is provably stored; else what fills the rest (SPEC K7)."""

    output: str
    proven: bool
    fill: str
    reason: str


@dataclass(frozen=True)
class Limit:
    """A device limit. `checked` is False where nothing on this machine could check it (SPEC X9)."""

    name: str
    requested: int
    allowed: int
    checked: bool
    note: str = ""


@dataclass(frozen=True)
class Timing:
    """Seconds of one compiler step; `kind` is pass, verifier, frontend or emit."""

    step: str
    kind: str
    seconds: float


@dataclass
class ExecutionReport:
    """What the compiler did for one specialisation, and how one dispatch launches it.

    Falsy never: a report with empty lists says that nothing of that sort was needed.
    """

    kernel: str = ""
    backend: str = ""
    target: str = ""
    threads: int = 0
    grid: tuple[int, int, int] = (0, 0, 0)
    index_bits: int = 32
    math_mode: str = "safe"
    value_layouts: list[ValueLayout] = field(default_factory=list)
    layout_conversions: list[LayoutConversion] = field(default_factory=list)
    layout_optimizations: list[LayoutOptimization] = field(default_factory=list)
    register_reductions: list[RegisterReduction] = field(default_factory=list)
    grouped_loads: list[GroupedAccess] = field(default_factory=list)
    grouped_stores: list[GroupedAccess] = field(default_factory=list)
    allocations: list[Allocation] = field(default_factory=list)
    pipelines: list[Pipeline] = field(default_factory=list)
    bounds_checks_removed: int = 0
    coverage: list[Coverage] = field(default_factory=list)
    limits: list[Limit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """Plain lists, dicts, strings and numbers; `json.dumps` takes it as it is."""
        plain = asdict(self)
        plain["grid"] = list(self.grid)
        return plain


def place(loc: Loc) -> str:
    """A location as report facts carry it: `file.py:line`."""
    return f"{loc.file.rsplit('/', 1)[-1]}:{loc.line}"
