"""Every op, kind, dtype and public name has all its rows: a new one that some table does not know
fails here, by name (DESIGN 3)."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from types import ModuleType

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import backends, compiler, dtypes, target
from metile_mlx.emit import arithmetic, cpp, msl
from metile_mlx.frontend import language, rules
from metile_mlx.ir import lanes, loops, matrix, metal, permute, pipeline, planned, stated, tile
from metile_mlx.ir.arith import BinaryKind, CompareKind, UnaryKind
from metile_mlx.ir.core import Op
from metile_mlx.passes import scalarise
from metile_mlx.runtime import cpu, reference, reference_ops
from metile_mlx.verify import structure
from tests.support import arithmetic as on_numpy
from tests.support import simulate
from tests.support.cpu_kernels import C_TYPES


def ops(*modules: ModuleType) -> list[type[Op]]:
    """The op classes these modules define."""
    return [
        item
        for module in modules
        for item in vars(module).values()
        if isinstance(item, type) and issubclass(item, Op) and item.__module__ == module.__name__
    ]


LOOPS = [item for item in ops(loops, lanes, matrix, pipeline) if item is not loops.Loop]
TILE = ops(tile, permute, planned) + [item for item in LOOPS if item.opcode.startswith("tile.")]
METAL = ops(metal, stated) + [item for item in LOOPS if item.opcode.startswith("metal.")]
# The terminator of a branch is read by whoever runs the branch.
OP_TABLES: dict[str, tuple[list[type[Op]], Iterable[type[Op]], frozenset[type[Op]]]] = {
    "scalarise": (TILE, scalarise.RULES, frozenset()),
    "reference": (TILE, reference.RULES, frozenset({tile.Yield})),
    "msl": (METAL, {*msl.EXPRESSIONS, *msl.LINES}, frozenset()),
    "cpp": (METAL, {*cpp.EXPRESSIONS, *cpp.LINES}, frozenset()),
    "simulator": (METAL, simulate.STEPS, frozenset()),
    "structure": (TILE + METAL, frozenset().union(*structure.LEGAL.values()), frozenset()),
}


def test_all_ops_are_found() -> None:
    """The list above is not empty by mistake, and opcodes are told apart by their prefix."""
    assert len(TILE) >= 24
    assert len(METAL) >= 20
    assert {item.opcode.partition(".")[0] for item in TILE} == {"tile"}
    assert {item.opcode.partition(".")[0] for item in METAL} == {"metal"}
    opcodes = [item.opcode for item in TILE + METAL]
    assert len(opcodes) == len(set(opcodes))


@pytest.mark.parametrize("name", OP_TABLES)
def test_every_op_has_its_row(name: str) -> None:
    wanted, table, without = OP_TABLES[name]
    missing = [item.opcode for item in wanted if item not in set(table) | without]
    assert missing == [], f"{name} lacks {missing}"
    strange = [item for item in table if item not in wanted]
    assert strange == [], f"{name} has rows for {strange}"
    assert not without & set(table)


@pytest.mark.parametrize("module", [msl, cpp], ids=["msl", "cpp"])
def test_an_op_is_an_expression_or_a_statement(module: ModuleType) -> None:
    assert not module.EXPRESSIONS.keys() & module.LINES.keys()


# On tiles // and % are Python's; on one thread they have become what a processor has.
ON_TILES = frozenset(BinaryKind) - {BinaryKind.REM}
ON_THREADS = frozenset(BinaryKind) - {BinaryKind.FLOORDIV, BinaryKind.MOD}
KIND_TABLES: dict[str, tuple[Iterable[object], Iterable[object]]] = {
    "reference, one operand": (UnaryKind, reference_ops.UNARY),
    "reference, two operands": (ON_TILES, reference_ops._BINARY),
    "reference, comparison": (CompareKind, reference_ops.COMPARE),
    "text, comparison": (CompareKind, arithmetic.COMPARISONS),
    "text, two operands": (
        ON_THREADS,
        {*arithmetic.OPERATORS, *arithmetic._FUNCTIONS, *arithmetic._EXTREMES},
    ),
    "NumPy, one operand": (
        UnaryKind,
        {*on_numpy.FLOAT_UNARY, *on_numpy.INTEGER_UNARY},
    ),
    "NumPy, two operands": (
        ON_THREADS,
        {*on_numpy.FLOAT_BINARY, *on_numpy.INTEGER_BINARY},
    ),
    "NumPy, comparison": (CompareKind, on_numpy.COMPARE),
}


@pytest.mark.parametrize("name", KIND_TABLES)
def test_every_kind_has_its_row(name: str) -> None:
    wanted, table = KIND_TABLES[name]
    missing = [kind for kind in wanted if kind not in set(table)]
    assert missing == [], f"{name} lacks {missing}"


DTYPE_TABLES: dict[str, Iterable[dtypes.DType]] = {
    "MLX names": dtypes.MLX_NAMES.values(),
    "MLX dtypes": cpu.mlx_dtypes(),
    "NumPy": on_numpy.NUMPY,
    "names": dtypes.BY_NAME.values(),
    "MSL": msl._Msl.spelling.types,
    "C++": cpp._Cpp.spelling.types,
    "C++ of the tests": [dtypes.BY_NAME[name] for name in C_TYPES],
}


@pytest.mark.parametrize("name", DTYPE_TABLES)
def test_every_dtype_has_its_row(name: str) -> None:
    """SPEC K4."""
    assert set(DTYPE_TABLES[name]) == set(dtypes.ALL)


def test_every_dtype_is_public() -> None:
    for dtype in dtypes.ALL:
        name = "bool_" if dtype.name == "bool" else dtype.name
        assert getattr(metile, name) is dtype
        assert isinstance(cpu.mlx_dtypes()[dtype], mx.Dtype)


def functions(module: ModuleType) -> Mapping[str, object]:
    """The public functions of a module."""
    return {
        name: item
        for name, item in vars(module).items()
        if inspect.isfunction(item) and name in metile.__all__
    }


def test_every_function_of_the_language_has_a_rule() -> None:
    """SPEC K3: a stub without a rule would be a name that no kernel can call."""
    # These are called on the host, around kernels.
    host = {"kernel", "empty", "export", "vmap", "inline", "autotune", "patch", *metile.nn.__all__}
    missing = [
        name
        for name, item in functions(metile).items()
        if name not in host and item not in rules.RULES and item not in rules.HOST
    ]
    assert missing == []
    assert {f.__name__ for f in rules.RULES if inspect.isfunction(f)} >= {"load", "store", "where"}


def test_the_language_is_public() -> None:
    """SPEC K9: what a kernel may call is a name of the package."""
    lost = [name for name in functions(language) if getattr(metile, name, None) is None]
    assert lost == []
    assert len(metile.__all__) == len(set(metile.__all__))
    assert all(hasattr(metile, name) for name in metile.__all__)


def test_every_function_is_documented() -> None:
    for name in metile.__all__:
        item = getattr(metile, name)
        if inspect.isfunction(item) or inspect.isclass(item):
            assert inspect.getdoc(item), name


def test_every_target_has_an_emitter_and_every_compiling_backend_a_target() -> None:
    assert {item.language for item in target.BY_NAME.values()} == compiler.EMITTERS.keys()
    compiled = {backend.target for backend in backends.BACKENDS.values()} - {None}
    assert compiled <= set(target.BY_NAME.values())
    assert all(backend.name == name for name, backend in backends.BACKENDS.items())
