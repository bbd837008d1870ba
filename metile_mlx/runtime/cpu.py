"""The cpu backend: generated C++ compiled, cached, loaded and run lazily by MLX (X4, X7, X10)."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from metile_mlx import config
from metile_mlx.dtypes import MLX_NAMES, DType
from metile_mlx.emit.source import KernelSource
from metile_mlx.errors import BackendError, CompileError, LaunchError
from metile_mlx.locks import Lock
from metile_mlx.runtime import cache, cpu_module, toolchain
from metile_mlx.runtime.cpu_module import Call, CpuModule, LoadedKernel
from metile_mlx.runtime.optional import mx
from metile_mlx.runtime.toolchain import CompilerFailed, Toolchain

# How an output starts (K7). A number from 0 on: as a copy of that array input.
INIT_NOTHING = -1
INIT_ZERO = -2

MAX_EXTENT = 2**31 - 1
# Kernels per compiler run of `build_many`: enough to share the headers, few enough to run abreast.
BATCH = 40

_PARAMETERS = "(void* const*, const metile_scalar*, const uint32_t*, uint64_t, uint64_t)"
_kernels: dict[str, CpuKernel] = {}
_locks: dict[str, Lock] = {}


def available() -> str | None:
    """None where kernels can be compiled and run on this machine's CPU, else the reason.

    The first call on a machine builds a module, which takes seconds.
    """
    return _available(config.compiler(), str(config.cache_dir()))


@functools.cache
def _available(_compiler: str | None, _folder: str) -> str | None:
    """Answered once for each setting it depends on: a build that fails takes seconds too."""
    try:
        cpu_module.load(toolchain.find())
    except BackendError as error:
        return str(error)
    return None


def thread_count() -> int:
    """Threads that share the programs of a launch, the stream's own included.

    Raises:
        BackendError: the backend is not available here.
    """
    return cpu_module.load(toolchain.find()).thread_count()


@functools.cache
def mlx_dtypes() -> dict[DType, mx.Dtype]:
    """MLX's dtype of each of ours."""
    return {
        dtype: getattr(mx, "bool_" if name == "bool" else name) for name, dtype in MLX_NAMES.items()
    }


class CpuKernel:
    """A compiled kernel. Its function is loaded and stays so until the process ends."""

    def __init__(self, source: KernelSource, loaded: LoadedKernel, module: CpuModule) -> None:
        self.source = source
        self._loaded = loaded
        self._module = module
        self._arrays = sum(not argument.is_scalar for argument in source.inputs)

    def __repr__(self) -> str:
        return f"<CpuKernel {self.source.name}>"

    def bind(
        self,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[DType],
        grid: Sequence[int],
        init: Sequence[int],
        stream: object = None,
        transforms: object = None,
        input_shapes: Sequence[Sequence[int]] | None = None,
    ) -> Call:
        """Fixes what is equal in many calls; a call of the result takes about a microsecond.

        Args:
            shapes: of the outputs.
            dtypes: of the outputs.
            grid: programs per axis, one to three.
            init: per output `INIT_NOTHING`, `INIT_ZERO`, or the array input it starts as a copy of.
            stream: an MLX stream or device; None takes the default CPU stream of each call.
            transforms: object with `vjp(primals, cotangents, argnums, outputs)` and
                `jvp(primals, tangents, argnums)`, each returning a list of arrays; called with
                unbatched arrays and the float arguments only. Without it gradients raise.
            input_shapes: of the array inputs, when every call must have exactly these.

        Returns:
            `call(arrays, scalars) -> [output, ...]`, lazy. It raises LaunchError for a wrong count,
            type, dtype or shape, and for a scalar its dtype can't hold.

        Raises:
            LaunchError: shapes, grid, init or stream that can't be launched.
        """
        self._check(shapes, dtypes, init)
        return self._module.bind(
            self._loaded,
            [list(shape) for shape in shapes],
            [mlx_dtypes()[dtype] for dtype in dtypes],
            _grid(self.source.name, grid),
            list(init),
            stream,
            transforms,
            None if input_shapes is None else [list(shape) for shape in input_shapes],
        )

    def launch(
        self,
        inputs: Sequence[mx.array],
        scalars: Sequence[int | float | bool],
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[DType],
        grid: Sequence[int],
        init: Sequence[int],
        stream: object = None,
        transforms: object = None,
    ) -> list[mx.array]:
        """One lazy launch: `bind(...)(inputs, scalars)`."""
        return self.bind(shapes, dtypes, grid, init, stream, transforms)(inputs, scalars)

    def _check(
        self, shapes: Sequence[Sequence[int]], dtypes: Sequence[DType], init: Sequence[int]
    ) -> None:
        count = len(self.source.outputs)
        if not len(shapes) == len(dtypes) == len(init) == count:
            raise LaunchError(
                f"kernel {self.source.name} has {count} outputs; given {len(shapes)} shapes, "
                f"{len(dtypes)} dtypes and {len(init)} initial states"
            )
        for output, shape, dtype, start in zip(
            self.source.outputs, shapes, dtypes, init, strict=True
        ):
            where = f"kernel {self.source.name}: output '{output.param}'"
            if dtype != output.dtype:
                raise LaunchError(f"{where} is compiled for {output.dtype}, {dtype} given")
            if not all(0 <= extent <= MAX_EXTENT for extent in shape):
                raise LaunchError(
                    f"{where} has shape {tuple(shape)}; each extent must be 0 to {MAX_EXTENT}"
                )
            if not INIT_ZERO <= start < self._arrays:
                raise LaunchError(
                    f"{where} starts as {start}, which is neither nothing, zero, nor an input"
                )


def build(source: KernelSource) -> CpuKernel:
    """The compiled kernel of a C++ source: from this process, the cache folder, or the compiler.

    Raises:
        BackendError: the backend is not available here.
        CompileError: the compiler refused the text; shows its message and where the text is kept.
    """
    return _built(source, config.compiler(), str(config.cache_dir()))


@functools.cache
def _built(source: KernelSource, _compiler: str | None, _folder: str) -> CpuKernel:
    """Asked anew for each shape: to look for the compiler and to hash the text takes longer."""
    return build_many([source])[0]


def build_many(sources: Sequence[KernelSource]) -> list[CpuKernel]:
    """As `build` for each source, compiling many in one compiler run (tests, tuning)."""
    chain = toolchain.find()
    module = cpu_module.load(chain)
    keys = [_key(source, chain) for source in sources]
    missing = {
        key: source for key, source in zip(keys, sources, strict=True) if key not in _kernels
    }
    items = sorted(missing.items())
    groups = [dict(items[start : start + BATCH]) for start in range(0, len(items), BATCH)]
    if len(groups) == 1:
        _build_group(groups[0], chain, module)
    elif groups:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda group: _build_group(group, chain, module), groups))
    return [_kernels[key] for key in keys]


def _key(source: KernelSource, chain: Toolchain) -> str:
    return cache.key(
        source.name,
        source.header,
        source.body,
        repr(source.inputs),
        repr(source.outputs),
        toolchain.prelude(toolchain.included(source.header)),
        " ".join(toolchain.KERNEL_FLAGS),
        chain.identity(),
    )


def _build_group(group: dict[str, KernelSource], chain: Toolchain, module: CpuModule) -> None:
    """Compiles and loads the kernels of one translation unit, once per process."""
    name = cache.key(*group)
    with _locks.setdefault(name, Lock()):
        if all(key in _kernels for key in group):
            return
        path = _shared_object(name, group, chain)
        try:
            loaded = {key: _load(path, key, source, module) for key, source in group.items()}
        except RuntimeError:
            # A damaged file, of a full disk for example: made anew, once.
            path.unlink(missing_ok=True)
            path = _shared_object(name, group, chain)
            loaded = {key: _load(path, key, source, module) for key, source in group.items()}
        for key, kernel in loaded.items():
            _kernels.setdefault(key, kernel)


def _shared_object(name: str, group: dict[str, KernelSource], chain: Toolchain) -> Path:
    text = translation_unit(group)
    try:
        return cache.publish(f"kernel-{name}.so", functools.partial(chain.compile_kernel, text))
    except CompilerFailed as error:
        names = ", ".join(source.name for source in group.values())
        kept = cache.keep_failed(f"{name}.cpp", text)
        message = "\n".join(str(error).splitlines()[:30])
        raise CompileError(
            f"{chain.name} can't compile kernel {names}:\n{message}",
            hint=f"the text is kept in {kept}",
        ) from error


def translation_unit(group: dict[str, KernelSource]) -> str:
    """One C++ text of several kernels: each in a namespace, its entry named after its key."""
    includes: dict[str, None] = {}
    parts = []
    for key, source in group.items():
        body = []
        for line in f"{source.header}\n{source.body}".splitlines():
            if not line.startswith("#include"):
                body.append(line)
            elif '"' not in line:
                includes[line] = None
        parts += [
            f"namespace metile_{key} {{",
            f"#define metile_entry metile_entry_{key}",
            f'extern "C" void metile_entry{_PARAMETERS};',
            *body,
            "#undef metile_entry",
            "}",
        ]
    more = toolchain.included("\n".join(source.header for source in group.values()))
    return "\n".join([*includes, toolchain.prelude(more), *parts, ""])


def _load(path: Path, key: str, source: KernelSource, module: CpuModule) -> CpuKernel:
    arrays = [argument for argument in source.inputs if not argument.is_scalar]
    scalars = [argument for argument in source.inputs if argument.is_scalar]
    dtypes = mlx_dtypes()
    loaded = module.load(
        str(path),
        f"metile_entry_{key}",
        source.name,
        [argument.param for argument in arrays],
        [dtypes[argument.dtype] for argument in arrays],
        [argument.param for argument in scalars],
        [dtypes[argument.dtype] for argument in scalars],
    )
    return CpuKernel(source, loaded, module)


def _grid(name: str, grid: Sequence[int]) -> list[int]:
    """Three program counts. Raises LaunchError where there are more, or one is out of range."""
    if not 1 <= len(grid) <= 3 or not all(0 <= count <= MAX_EXTENT for count in grid):
        raise LaunchError(
            f"kernel {name}: grid {tuple(grid)} must be one to three counts of 0 to {MAX_EXTENT}"
        )
    full = [*grid, 1, 1][:3]
    if full[0] * full[1] * full[2] >= 2**63:
        raise LaunchError(f"kernel {name}: grid {tuple(grid)} has more than 2^63 programs")
    return full
