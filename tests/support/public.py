"""What tests of the public API share: bits of arrays, compiling many kernels at once, processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np

import metile_mlx as metile
from metile_mlx.emit.source import KernelSource
from metile_mlx.runtime import cpu
from metile_mlx.specialise import Specialisation, TextKey
from metile_mlx.target import CPU

ROOT = Path(__file__).resolve().parents[2]
UNSIGNED = {1: (np.uint8, mx.uint8), 2: (np.uint16, mx.uint16), 4: (np.uint32, mx.uint32)}
DTYPES = {
    "f16": mx.float16,
    "bf16": mx.bfloat16,
    "f32": mx.float32,
    "i32": mx.int32,
    "u32": mx.uint32,
    "bool": mx.bool_,
}
# Bit patterns: signalling and quiet NaNs with payloads, infinities, -0.0, subnormals, INT_MIN.
SPECIAL = {
    "f16": (0x7C01, 0xFD55, 0x7E01, 0xFFFF, 0x7C00, 0xFC00, 0x8000, 0x0001, 0x83FF, 0x7BFF),
    "bf16": (0x7F81, 0xFFAA, 0x7FC1, 0xFFFF, 0x7F80, 0xFF80, 0x8000, 0x0001, 0x807F, 0x7F7F),
    "f32": (
        0x7F800001,
        0xFFA55555,
        0x7FC00001,
        0xFFFFFFFF,
        0x7F800000,
        0xFF800000,
        0x80000000,
        0x00000001,
        0x807FFFFF,
        0x7F7FFFFF,
    ),
    "i32": (0x80000000, 0x7FFFFFFF, 0xFFFFFFFF, 0),
    "u32": (0x80000000, 0x7FFFFFFF, 0xFFFFFFFF, 0),
    "bool": (0, 1),
}


def bits(x: mx.array) -> np.ndarray[Any, Any]:
    """The elements as unsigned integers, so that equality is equality of bits."""
    if x.dtype == mx.bool_:
        return np.array(x)
    return np.array(mx.contiguous(x).view(UNSIGNED[x.dtype.size][1]))


def same_bits(a: mx.array, b: mx.array) -> bool:
    """Bitwise equality, shape and dtype included."""
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(bits(a), bits(b))


def payload(dtype: str, shape: tuple[int, ...], seed: int = 0) -> mx.array:
    """Random bits with every special pattern of the dtype among them."""
    rng = np.random.default_rng(seed)
    size = int(np.prod(shape))
    if dtype == "bool":
        return mx.array(rng.integers(0, 2, shape).astype(np.bool_))
    kind = UNSIGNED[DTYPES[dtype].size][0]
    found = rng.integers(0, 2 ** (8 * DTYPES[dtype].size), size, np.uint64).astype(kind)
    special = np.array(SPECIAL[dtype], kind)[: max(size // 2, 1)]
    found[rng.permutation(size)[: len(special)]] = special
    return mx.array(found.reshape(shape)).view(DTYPES[dtype])


def random_layout(rng: Random, size: int) -> metile.ThreadLayout:
    """One value per thread, any permutation, any XOR constant."""
    order = list(range(size.bit_length() - 1))
    rng.shuffle(order)
    return metile.ThreadLayout(tuple(order), xor_mask=rng.randrange(size))


def source(dispatch: metile.Dispatch) -> KernelSource:
    """The C++ text a dispatch runs as on the CPU."""
    found = dispatch._request(dispatch._values, CPU).source
    assert found is not None
    return found


def compile_all(dispatches: Iterable[metile.Dispatch]) -> None:
    """Compile the CPU texts of many dispatches in few compiler runs."""
    cpu.build_many([source(dispatch) for dispatch in dispatches])


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of the kernels whose texts are made inside."""
    found: list[str] = []
    lower: Callable[..., Any] = Specialisation._compile

    def noting(self: Specialisation, key: TextKey) -> Any:
        found.append(self.func.name)
        return lower(self, key)

    hooked: Any = Specialisation
    hooked._compile = noting
    try:
        yield found
    finally:
        hooked._compile = lower


def device_of(backend: str) -> mx.DeviceType:
    """Where its kernels run: streams of this device can be given to it."""
    return mx.gpu if backend in ("metal", "cuda") else mx.cpu


def parameters(msl: str) -> list[str]:
    """The parameters of the signature MLX generated, in order."""
    match = re.search(r"\[\[kernel\]\] void \w+\(\n(.*?)\) \{\n", msl, re.S)
    assert match is not None, msl
    return [line.strip() for line in match[1].split(",\n")]


def parameter_names(msl: str) -> list[str]:
    """Their names."""
    return [re.sub(r" \[\[.*", "", line).split()[-1] for line in parameters(msl)]


def python(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `text` as a script in a fresh process; it must be a file, since kernels have source."""
    return subprocess.run(
        [sys.executable, text],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
