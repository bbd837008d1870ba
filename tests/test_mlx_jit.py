"""What the suite does to what MLX compiles: faster, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import mlx_jit

FUSED = """
import mlx.core as mx
print(mx.compile(lambda x: mx.sqrt(x) * 3 - x / 7 + 11)(mx.array([4.0, 49.0])).tolist())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere MLX calls another compiler")
def test_mlx_takes_the_precompiled_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's own call of g++, which says here what it includes."""
    if not mlx_jit.precompiled().exists():
        mlx_jit.build()
    shared = mlx_jit.texts() / "mlx"
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    mlx_jit.texts().mkdir(parents=True)
    (mlx_jit.texts() / "mlx").symlink_to(shared)
    compiler = tmp_path / "g++"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} -H "$@" 2>>{tmp_path}/said\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run([sys.executable, "-c", FUSED], capture_output=True, text=True, check=True)
    assert done.stdout == "[16.428571701049805, 25.0]\n"
    assert f"! {mlx_jit.precompiled()}" in (tmp_path / "said").read_text()
