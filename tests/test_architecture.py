"""The import directions, gates and sizes of the design hold, and the checker can see when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.architecture import public_names, rank, violations

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("metile_mlx", "kernels", "examples", "benchmarks", "tests")
INIT = '"""Doc."""\n__all__ = ["ThreadLayout", "kernel"]\n'


def read_tree() -> dict[str, str]:
    """Path -> text of every Python file, and of the C++ that ships with the package."""
    files = [
        file
        for folder in FOLDERS
        for pattern in ("*.py", "*.cpp", "*.h")
        for file in sorted((ROOT / folder).rglob(pattern))
    ]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def test_tree_keeps_every_rule() -> None:
    found = violations(read_tree())
    assert not found, "\n".join(found)


def test_tree_that_is_checked_is_the_tree() -> None:
    tree = read_tree()
    assert {"metile_mlx/errors.py", "kernels/__init__.py", "tests/__main__.py"} <= set(tree)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metile_mlx/errors.py", 0),
        ("metile_mlx/layout/affine.py", 1),
        ("metile_mlx/ir/core.py", 2),
        ("metile_mlx/ir/tile.py", 3),
        ("metile_mlx/ir/arith.py", 3),
        ("metile_mlx/context.py", 4),
        ("metile_mlx/frontend/language/memory.py", 5),
        ("metile_mlx/compiler.py", 6),
        ("metile_mlx/runtime/cpu.py", 7),
        ("metile_mlx/emulator/fibers.py", 8),
        ("metile_mlx/__main__.py", 9),
        ("metile_mlx/doctor.py", 9),
        ("metile_mlx/nn/norm.py", 9),
        ("metile_mlx/unheard/of.py", None),
    ],
)
def test_rank_of_a_file_follows_the_design(path: str, expected: int | None) -> None:
    assert rank(path) == expected


LEGAL = {
    "metile_mlx/__init__.py": "from metile_mlx.kernel import kernel\n" + INIT.split("\n", 1)[1],
    "metile_mlx/kernel.py": "from metile_mlx import compiler\nfrom metile_mlx.nn import norm\n",
    "metile_mlx/nn/norm.py": (
        "from metile_kernels.norm import k\nfrom metile_mlx.errors import MetileError\n"
    ),
    "metile_mlx/nn/optional.py": "from mlx.nn.layers.base import Module\n",
    "metile_mlx/compiler.py": "import dataclasses\nfrom metile_mlx.passes.scalarise import run\n",
    "metile_mlx/passes/scalarise.py": "import numpy\nfrom ..ir import core\nfrom . import helper\n",
    "metile_mlx/passes/helper.py": "from ..ir.core import Op\n",
    "metile_mlx/ir/core.py": "from metile_mlx import errors\n",
    "metile_mlx/errors.py": '"""A name such as \N{GREEK SMALL LETTER LAMDA}."""\n',
    "metile_mlx/runtime/optional.py": "import mlx.core as mx\nimport rich\n",
    "metile_mlx/runtime/cpu.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mlx.core as mx\n"
    ),
    "kernels/norm.py": "import mlx.core as mx\nimport metile_mlx as metile\nmetile.kernel\n",
    "examples/one.py": "from metile_mlx import ThreadLayout\nimport metile_kernels.norm\n",
}


def test_checker_accepts_a_legal_tree() -> None:
    assert violations(LEGAL) == []
    assert public_names(LEGAL) == {"ThreadLayout", "kernel"}


PLANTED = [
    ("metile_mlx/ir/core.py", "from metile_mlx.passes import helper", "rank 2 imports"),
    ("metile_mlx/ir/core.py", "from ..passes.helper import x", "rank 2 imports"),
    ("metile_mlx/ir/core.py", "import metile_mlx.compiler", "rank 2 imports"),
    ("metile_mlx/ir/core.py", "from metile_mlx import kernel", "rank 2 imports"),
    ("metile_mlx/ir/core.py", "from metile_mlx.ir import tile", "rank 2 imports"),
    ("metile_mlx/verify/a.py", "from metile_mlx.passes import helper", "rank 5 imports"),
    ("metile_mlx/passes/helper.py", "from metile_mlx.passes import scalarise", "import cycle"),
    ("metile_mlx/nn/norm.py", "import metile_mlx", "import cycle"),
    ("metile_mlx/ir/core.py", "from metile_mlx.ir.lost import x", "no module metile_mlx.ir.lost"),
    ("metile_mlx/unheard/of.py", "", "the folder 'unheard' has no rank"),
    ("metile_mlx/kernel.py", "def f():\n    import os", "import inside a function"),
    (
        "kernels/norm.py",
        "class A:\n    def f(self):\n        import os",
        "import inside a function",
    ),
    ("metile_mlx/kernel.py", "import mlx.core", "imports mlx.core; only"),
    ("metile_mlx/kernel.py", "from mlx import nn", "imports mlx; only"),
    ("metile_mlx/kernel.py", "import matplotlib", "imports matplotlib; only"),
    ("metile_mlx/kernel.py", "import metile_kernels.norm", "imports metile_kernels.norm; only"),
    ("metile_mlx/nn/norm.py", "import mlx.nn", "imports mlx.nn; only"),
    (
        "metile_mlx/passes/helper.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mlx.core",
        "imports mlx.core; only",
    ),
    ("kernels/norm.py", "from metile_mlx.ir import core", "metile_mlx.ir.core is not public"),
    ("kernels/norm.py", "import metile_mlx.compiler", "metile_mlx.compiler is not public"),
    ("examples/one.py", "from metile_mlx import errors", "metile_mlx.errors is not public"),
    ("benchmarks/a.py", "import metile_mlx as m\nm.runtime.x", "metile_mlx.runtime is not public"),
    ("metile_mlx/errors.py", "x = '\N{MICRO SIGN}'", "is not ASCII"),
    ("metile_mlx/runtime/a.h", "// \N{EN DASH}", "is not ASCII"),
    ("metile_mlx/errors.py", "\n" * 451, "451 lines, at most 450"),
]


@pytest.mark.parametrize(("path", "text", "message"), PLANTED)
def test_checker_reports_a_planted_violation(path: str, text: str, message: str) -> None:
    base = {"metile_mlx/ir/tile.py": "", **LEGAL}
    found = violations({**base, path: text if message[0].isdigit() else base.get(path, "") + text})
    assert any(message in line and path in line for line in found), found
