"""MLX compiles fused operations of a CPU with g++, each in 0.4 s: 0.3 s of them parse one header.

MLX writes the texts into a temporary folder, and there g++ looks first for what they include: a
precompiled header in it makes the same code. One that does not fit its flags g++ passes over.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import mlx.core as mx

HEADER = "mlx/backend/cpu/compiled_preamble.h"
# As MLX calls it.
FLAGS = ["-std=c++17", "-O3", "-Wall", "-fPIC", "-shared"]
INCLUDE = Path(str(mx.__file__)).parent / "include"


def redirect(folder: Path) -> None:
    """MLX's compiled operations go below `folder`, another place for each MLX."""
    # Files of Python stay where they are.
    tempfile.gettempdir()
    digest = hashlib.sha256(INCLUDE.as_posix().encode())
    for path in sorted(INCLUDE.glob("mlx/**/*.h")):
        digest.update(path.read_bytes())
    own = folder / digest.hexdigest()[:16]
    own.mkdir(parents=True, exist_ok=True)
    os.environ["TMPDIR"] = str(own)


def texts() -> Path:
    """Where MLX writes the texts of its operations, after `redirect`."""
    version = vars(mx)["__version__"]
    return Path(os.environ["TMPDIR"]) / "mlx" / version / "cpu"


def precompile() -> None:
    """Precompiles the header in the background, where there is a compiler and it is missing."""
    if sys.platform == "linux" and shutil.which("g++") and not precompiled().exists():
        threading.Thread(target=build).start()


def precompiled() -> Path:
    """The file that g++ takes instead of the header."""
    return texts() / f"{HEADER}.gch"


def build() -> None:
    """Makes it, complete or not at all."""
    target = precompiled()
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
    command = ["g++", *FLAGS, "-I", str(INCLUDE), "-x", "c++-header", str(INCLUDE / HEADER)]
    if not subprocess.run([*command, "-o", str(made)], check=False, capture_output=True).returncode:
        made.replace(target)
