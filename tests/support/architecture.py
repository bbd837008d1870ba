"""Rules about the source tree itself: who may import whom, and where. Reads text, imports nothing.

A tree is a dict from path (relative to the root, with `/`) to text, so that the tests can plant
violations in small ones.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

PACKAGE = "metile_mlx"
GATE = "metile_mlx/runtime/optional.py"
# Modules: only who uses them pays for the import of mlx.nn, and they run the library's kernels.
MODULE_GATE = "metile_mlx/nn/optional.py"
LIBRARY = "metile_kernels"
PUBLIC_ONLY = ("kernels/", "examples/", "benchmarks/")
PUBLIC_MODULES = frozenset(
    {"metile_mlx", "metile_mlx.nn", "metile_mlx.emulator", "metile_mlx.testing"}
)
SURFACE = 9
MAX_LINES = 450

# Folders of the package and the single files that differ from their folder. A file directly in the
# package that is not listed belongs to the public surface, which nothing below may import.
FOLDER_RANKS = {
    "layout": 1, "ir": 3, "analysis": 4, "frontend": 5, "passes": 5, "verify": 5, "emit": 5,
    "runtime": 7, "emulator": 8, "nn": SURFACE, "patching": SURFACE, "": SURFACE,
}  # fmt: skip
FILE_RANKS = {
    "errors.py": 0, "config.py": 0, "dtypes.py": 0, "target.py": 0, "locks.py": 0,
    "ir/types.py": 2, "ir/core.py": 2, "ir/printer.py": 2, "ir/rewrite.py": 2, "ir/cloning.py": 2,
    "report.py": 4, "context.py": 4, "compiler.py": 6,
}  # fmt: skip


@dataclass(frozen=True)
class Import:
    """One imported module; `name` is set for `from module import name`."""

    module: str
    name: str | None
    line: int
    in_function: bool
    typing_only: bool


def module_name(path: str) -> str:
    """`metile_mlx/ir/core.py` -> `metile_mlx.ir.core`; a package's `__init__.py` -> the package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def folder(path: str) -> str:
    """First folder below the package, empty for a file directly in it."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def rank(path: str) -> int | None:
    """Rank of a file of the package; None in a folder that has none."""
    return FILE_RANKS.get(path.split("/", 1)[1], FOLDER_RANKS.get(folder(path)))


def imports(path: str, tree: ast.Module) -> list[Import]:
    """Every import statement of a file, relative ones resolved."""
    found: list[Import] = []

    def visit(node: ast.AST, in_function: bool, typing_only: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            in_function = True
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            typing_only = True
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            base = _base(path, node)
            for alias in node.names:
                module, name = (alias.name, None) if base is None else (base, alias.name)
                found.append(Import(module, name, node.lineno, in_function, typing_only))
        for child in ast.iter_child_nodes(node):
            visit(child, in_function, typing_only)

    visit(tree, False, False)
    return found


def _base(path: str, node: ast.Import | ast.ImportFrom) -> str | None:
    """The absolute module of a `from` import; None for a plain one."""
    if isinstance(node, ast.Import):
        return None
    package = path.split("/")[:-1]
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *([node.module] if node.module else [])])


def _target(item: Import, paths: dict[str, str]) -> str | None:
    """Path of the file of the package that an import reads."""
    longer = f"{item.module}.{item.name}"
    return paths.get(longer) or paths.get(item.module)


def public_names(sources: dict[str, str]) -> set[str]:
    """`__all__` of the package's `__init__.py`, a literal list or tuple."""
    text = sources.get(f"{PACKAGE}/__init__.py", "")
    for node in ast.parse(text).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                return set(ast.literal_eval(value))
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.expr() as value):
                return set(ast.literal_eval(value))
            case _:
                pass
    return set()


def violations(sources: dict[str, str]) -> list[str]:
    """One line for each broken rule, `path:line: what, and what is allowed`."""
    trees = {path: ast.parse(text) for path, text in sources.items() if path.endswith(".py")}
    found = {path: imports(path, tree) for path, tree in trees.items()}
    problems: list[str] = []
    for path, items in found.items():
        problems += [
            f"{path}:{item.line}: import inside a function"
            for item in items
            if item.in_function and not path.startswith("tests/")
        ]
        if path.startswith(f"{PACKAGE}/"):
            problems += _third_party(path, items)
        if path.startswith(PUBLIC_ONLY):
            problems += _private_use(path, trees[path], items, public_names(sources))
    problems += _ranks({p: i for p, i in found.items() if p.startswith(f"{PACKAGE}/")})
    problems += [line for path, text in sources.items() for line in _text(path, text)]
    return problems


def _text(path: str, text: str) -> Iterator[str]:
    """What can reach a kernel's text is ASCII (SPEC X1); a file of the package is short."""
    if not path.startswith((f"{PACKAGE}/", "kernels/")):
        return
    parts = _strings(text) if path.endswith(".py") else enumerate(text.splitlines(), 1)
    for number, part in parts:
        if not part.isascii():
            bad = next(c for c in part if not c.isascii())
            yield f"{path}:{number}: {bad!a} is not ASCII"
    lines = len(text.splitlines())
    if path.startswith(f"{PACKAGE}/") and lines > MAX_LINES:
        yield f"{path}:{lines}: {lines} lines, at most {MAX_LINES}: split it by noun"


def _strings(text: str) -> Iterator[tuple[int, str]]:
    """(line, value) of every string and name of a Python file but its docstrings."""
    tree = ast.parse(text)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        if node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str() as value) if id(node) not in docs:
                yield node.lineno, value
            case ast.Name(id=value):
                yield node.lineno, value
            case _:
                pass


def _third_party(path: str, items: list[Import]) -> Iterator[str]:
    """Only the gates try optional packages; from rank 7 on annotations may name MLX types."""
    if path in (GATE, MODULE_GATE):
        return
    for item in items:
        top = item.module.split(".")[0]
        if top == LIBRARY and folder(path) == "nn":
            continue
        if top in (PACKAGE, "numpy") or top in sys.stdlib_module_names:
            continue
        if top == "mlx" and item.typing_only and (rank(path) or 0) >= 7:
            continue
        yield f"{path}:{item.line}: imports {item.module}; only {GATE} imports it"


def _ranks(found: dict[str, list[Import]]) -> Iterator[str]:
    """Lower ranks, or the same rank in the same folder, and no cycle."""
    paths = {module_name(path): path for path in found}
    graph: dict[str, set[str]] = {path: set() for path in found}
    for path, items in found.items():
        own = rank(path)
        if own is None:
            yield f"{path}:1: the folder {folder(path)!r} has no rank"
            continue
        for item in items:
            target = _target(item, paths)
            if target is None:
                if item.module.split(".")[0] == PACKAGE:
                    yield f"{path}:{item.line}: no module {item.module}"
                continue
            graph[path].add(target)
            other = rank(target)
            is_near = folder(path) == folder(target) or own == SURFACE
            if other is not None and (other > own or (other == own and not is_near)):
                yield f"{path}:{item.line}: rank {own} imports {target} of rank {other}"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"import cycle: {' -> '.join(reversed(error.args[1]))}"


def _private_use(
    path: str, tree: ast.Module, items: list[Import], public: set[str]
) -> Iterator[str]:
    """Kernels, examples and benchmarks are users: `metile.NAME` with NAME in `__all__`."""
    for item in items:
        if item.module.split(".")[0] != PACKAGE:
            continue
        is_listed = item.module != PACKAGE or item.name is None or item.name in public
        if item.module not in PUBLIC_MODULES or not is_listed:
            name = ".".join([item.module, *([item.name] if item.name else [])])
            yield f"{path}:{item.line}: {name} is not public"
    aliases = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == PACKAGE
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=root), attr=name) if root in aliases:
                if name not in public and not name.startswith("__"):
                    yield f"{path}:{node.lineno}: {PACKAGE}.{name} is not public"
