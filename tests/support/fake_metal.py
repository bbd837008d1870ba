"""The part of pyobjc's `Metal` module that a limit is asked through, on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metile_mlx.runtime import backend, metal, metal_limits, optional


class FakeOptions:
    """MTLCompileOptions: keeps what is set."""

    def __init__(self) -> None:
        self.set: dict[str, Any] = {}

    def setMathMode_(self, mode: int) -> None:
        self.set["math_mode"] = mode

    def setFastMathEnabled_(self, enabled: bool) -> None:
        self.set["fast_math"] = enabled

    def setLanguageVersion_(self, version: int) -> None:
        self.set["language"] = version


class FakeMetal:
    """`Metal`, its device and its libraries in one.

    Attributes:
        limit: what every pipeline allows.
        refusal: when set, the message with which a text is refused; `{label}` is the name that the
            last `#line` directive gives it.
        broken: when set, the exception that asking for a library raises.
        compiled: (text, options) of each text.
        pipelines: name of each function a pipeline was made of.
    """

    def __init__(self, limit: int = 1024) -> None:
        self.limit = limit
        self.refusal = ""
        self.pipeline_refusal = ""
        self.broken: Exception | None = None
        self.compiled: list[tuple[str, dict[str, Any]]] = []
        self.pipelines: list[str] = []
        self.MTLCompileOptions = SimpleNamespace(
            alloc=lambda: SimpleNamespace(init=lambda: FakeOptions())
        )

    def MTLCopyAllDevices(self) -> list[FakeMetal]:
        return [self]

    def newLibraryWithSource_options_error_(
        self, text: str, options: FakeOptions, error: None
    ) -> tuple[Any, Any]:
        if self.broken is not None:
            raise self.broken
        self.compiled.append((text, options.set))
        if self.refusal:
            label = text.rpartition('#line 1 "')[2].partition('"')[0]
            return None, _error(self.refusal.format(label=label))
        return self, _error("warning: unused variable")

    def newFunctionWithName_(self, name: str) -> str | None:
        text = self.compiled[-1][0]
        return name if f"void {name}(" in text else None

    def newComputePipelineStateWithFunction_error_(
        self, function: str, error: None
    ) -> tuple[Any, Any]:
        if self.pipeline_refusal:
            return None, _error(self.pipeline_refusal)
        self.pipelines.append(function)
        return SimpleNamespace(maxTotalThreadsPerThreadgroup=lambda: self.limit), None


def _error(message: str) -> Any:
    return SimpleNamespace(localizedDescription=lambda: message)


@contextmanager
def installed(
    fake: FakeMetal | None, macos: str = "15.3.1", mlx: Path | None = None
) -> Iterator[None]:
    """A machine with Metal whose pyobjc is `fake`, or absent; `mlx` holds the prelude, if given."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metal, "available", lambda: None)
        patch.setattr(backend, "_proven", {})
        patch.setattr(metal_limits.platform, "mac_ver", lambda: (macos, ("", "", ""), "arm64"))
        missing = "No module named 'Metal'" if fake is None else None
        patch.setattr(optional, "METAL_MISSING", missing)
        patch.setattr(optional, "pyobjc_metal", fake)
        if mlx is not None:
            patch.setattr(metal_limits.mx, "__file__", str(mlx / "core.so"))
        metal_limits._prelude.cache_clear()
        metal_limits._known.clear()
        try:
            yield
        finally:
            metal_limits._prelude.cache_clear()
            metal_limits._known.clear()
