"""`metal_kernel` with the signature and the calls of `mx.fast.metal_kernel`, on any machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from metile_mlx.emulator import build, host_module, results
from metile_mlx.errors import LaunchError
from metile_mlx.runtime.optional import MLX_MISSING, mx
from metile_mlx.runtime.record import CapturedKernel, capture

MAX_THREADS = 1024
_KINDS = {"_shape": 1, "_strides": 2, "_ndim": 3}


@dataclass(frozen=True)
class Options:
    """How kernels that are called now run.

    Attributes:
        checked: under the checker.
        schedules: orders of threads that a checked run tries; 1 is the natural order only.
        threads: OS threads of an unchecked run; 0 takes one per processor where that pays.
    """

    checked: bool = False
    schedules: int = 1
    threads: int = 0


_DEFAULT = Options()
_options: ContextVar[Options] = ContextVar("emulator_options", default=_DEFAULT)


@contextlib.contextmanager
def options(*, checked: bool, schedules: int = 1, threads: int = 0) -> Iterator[None]:
    """Sets how kernels run that are called inside the block."""
    token = _options.set(Options(checked, schedules, threads))
    try:
        yield
    finally:
        _options.reset(token)


class EmulatedKernel:
    """What `metal_kernel` returns; called as MLX's kernel is.

    Attributes:
        launches: how often it was called.
    """

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str,
        ensure_row_contiguous: bool,
        atomic_outputs: bool,
        compile_options: Mapping[str, str] | None,
    ) -> None:
        keywords: dict[str, Any] = {}
        if compile_options is not None:
            keywords["compile_options"] = dict(compile_options)
        self.name = name
        self.launches = 0
        self._inputs = tuple(input_names)
        self._outputs = tuple(output_names)
        self._row_contiguous = ensure_row_contiguous
        self._math_mode = (compile_options or {}).get("math_mode", "safe")
        self._kernel = _REAL(
            name=name,
            input_names=list(input_names),
            output_names=list(output_names),
            source=source,
            header=header,
            ensure_row_contiguous=ensure_row_contiguous,
            atomic_outputs=atomic_outputs,
            **keywords,
        )
        self._captured: dict[object, CapturedKernel] = {}

    def __repr__(self) -> str:
        return f"<EmulatedKernel {self.name}>"

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: Sequence[tuple[str, Any]] | None = None,
        init_value: float | None = None,
        verbose: bool = False,
        stream: Any = None,
    ) -> list[mx.array]:
        """The outputs, lazy, on the CPU stream; arguments as of MLX's kernel.

        Raises:
            LaunchError: grid or threadgroup that no device launches.
            CompileError: the emulator can't compile the text.
        """
        arrays = [each if isinstance(each, mx.array) else mx.array(each) for each in inputs]
        call: dict[str, Any] = {
            "output_shapes": [tuple(shape) for shape in output_shapes],
            "output_dtypes": list(output_dtypes),
            "grid": tuple(grid),
            "threadgroup": tuple(threadgroup),
            "init_value": init_value,
        }
        if template is not None:
            call["template"] = list(template)
        self._check(grid, threadgroup)
        captured = self._capture(arrays, call, verbose)
        self.launches += 1
        return self._launch(captured, arrays, call, stream)

    def _check(self, grid: Sequence[int], threadgroup: Sequence[int]) -> None:
        if len(grid) != 3 or len(threadgroup) != 3:
            raise LaunchError(
                f"kernel {self.name}: grid {tuple(grid)} and threadgroup {tuple(threadgroup)} must "
                "have three extents each"
            )
        if min(grid) < 0:
            raise LaunchError(
                f"kernel {self.name}: grid {tuple(grid)} has a negative extent; it counts threads"
            )
        threads = threadgroup[0] * threadgroup[1] * threadgroup[2]
        if min(threadgroup) < 1 or threads > MAX_THREADS:
            raise LaunchError(
                f"kernel {self.name}: threadgroup {tuple(threadgroup)} has {threads} threads; "
                f"1 to {MAX_THREADS} are allowed"
            )

    def _capture(
        self, arrays: list[mx.array], call: dict[str, Any], verbose: bool
    ) -> CapturedKernel:
        key = (
            tuple((a.dtype, a.ndim == 0, a.size < 8) for a in arrays),
            tuple(call["output_dtypes"]),
            len(call["output_shapes"]),
            repr(call.get("template")),
        )
        found = self._captured.get(key)
        if found is None or verbose:

            def traced(*given: mx.array) -> list[mx.array]:
                result: list[mx.array] = self._kernel(inputs=list(given), verbose=verbose, **call)
                return result

            (found,) = capture(traced, *arrays)
            self._captured[key] = found
        return found

    def _launch(
        self, captured: CapturedKernel, arrays: list[mx.array], call: dict[str, Any], stream: Any
    ) -> list[mx.array]:
        options = _options.get()
        built = build.build(
            captured.name, captured.text, checked=options.checked, math_mode=self._math_mode
        )
        host = host_module.load()
        key = results.register(self.name, captured.text, built.path)
        emulation = host.make(
            str(built.path),
            built.symbol,
            self.name,
            self._bindings(built),
            [list(shape) for shape in call["output_shapes"]],
            call["output_dtypes"],
            list(call["grid"]),
            list(call["threadgroup"]),
            self._row_contiguous,
            call["init_value"],
            options.checked,
            options.schedules,
            options.threads,
            key,
        )
        return host.launch(emulation, arrays, _cpu(stream))

    def _bindings(self, built: build.Built) -> list[tuple[int, int, str]]:
        """Per buffer of the signature: what it is bound to (emulation.h), whose, its name."""
        names = [each.name for each in built.signature.parameters if each.is_buffer]
        bindings: list[tuple[int, int, str]] = []
        outputs = 0
        owner = -1
        for name in names:
            suffix = name[len(self._inputs[owner]) :] if owner >= 0 else ""
            if owner + 1 < len(self._inputs) and name == self._inputs[owner + 1]:
                owner += 1
                bindings.append((0, owner, name))
            elif owner >= 0 and name.startswith(self._inputs[owner]) and suffix in _KINDS:
                bindings.append((_KINDS[suffix], owner, name))
            else:
                bindings.append((4, outputs, name))
                outputs += 1
        return bindings


def _cpu(stream: Any) -> mx.Stream | None:
    """The CPU stream a launch goes to: kernels made for a GPU run on the default one."""
    if isinstance(stream, mx.Stream) and stream.device == mx.Device(mx.DeviceType.cpu, 0):
        return stream
    return None


_REAL: Any = None if MLX_MISSING else getattr(mx.fast, "metal_kernel", None)


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    compile_options: Mapping[str, str] | None = None,
) -> EmulatedKernel:
    """As `mx.fast.metal_kernel`: its text runs thread by thread on the CPU."""
    return EmulatedKernel(
        name,
        input_names,
        output_names,
        source,
        header,
        ensure_row_contiguous,
        atomic_outputs,
        compile_options,
    )
