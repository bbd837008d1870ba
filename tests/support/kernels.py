"""Kernels for tests of the front end: functions of the test file, and text of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from metile_mlx.dtypes import BY_NAME
from metile_mlx.errors import MetileError
from metile_mlx.frontend.definition import Definition
from metile_mlx.frontend.translate import translate
from metile_mlx.frontend.values import ArraySpec, ScalarSpec
from metile_mlx.ir.core import Func
from metile_mlx.ir.printer import print_func

HEADER = "import metile_mlx.frontend.language as metile\n"


def tile_ir(kernel: object, *kinds: str, **constexprs: object) -> Func:
    """A kernel at Stage.TILE; `kinds` of runtime parameters: `f32*` an array, `i32` a scalar."""
    definition = kernel if isinstance(kernel, Definition) else Definition.of(kernel)
    runtime = [param.name for param in definition.params if not param.is_constexpr]
    specs = {
        name: ArraySpec(BY_NAME[kind[:-1]]) if kind.endswith("*") else ScalarSpec(BY_NAME[kind])
        for name, kind in zip(runtime, kinds, strict=True)
    }
    defaults = {param.name: param.default for param in definition.params if param.is_constexpr}
    return translate(definition, specs, {**defaults, **constexprs})


def tile_text(kernel: object, *kinds: str, **constexprs: object) -> str:
    """The printed tile IR of a kernel."""
    return print_func(tile_ir(kernel, *kinds, **constexprs))


def load_module(folder: Path, text: str, name: str = "k") -> ModuleType:
    """Write `text` under the usual import as a module of its own, and import it."""
    path = folder / f"{name}.py"
    path.write_text(HEADER + text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(f"{folder.name}_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rejection(folder: Path, text: str, *kinds: str, **constexprs: object) -> MetileError:
    """The error that translating the function `k` of a module with this text raises."""
    with pytest.raises(MetileError) as caught:
        tile_ir(load_module(folder, text).k, *kinds, **constexprs)
    return caught.value


def shown(error: MetileError, folder: Path) -> str:
    """The error as a user sees it, without the folder of the file."""
    return str(error).replace(f"{folder}/", "")
