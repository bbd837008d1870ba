"""One call of an autotuned kernel: what of its arguments counts, and a launch of each config."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from metile_mlx.context import Schedule
from metile_mlx.dispatch import Dispatch, Empty
from metile_mlx.errors import CompileError, LaunchError
from metile_mlx.frontend.definition import Parameter
from metile_mlx.kernel import Kernel, Launcher, backend_of, token
from metile_mlx.runtime.optional import mx
from metile_mlx.tuning import Work, evaluated

# A grid, or a function of the constexprs of a config.
AnyGrid = int | Sequence[int] | Callable[[Mapping[str, Any]], int | Sequence[int]]


@dataclass(frozen=True)
class Config:
    """Values of constexprs, and a schedule or None."""

    constexprs: Mapping[str, Any]
    schedule: Schedule | None

    def __str__(self) -> str:
        parts = [f"{name}={value!r}" for name, value in self.constexprs.items()]
        return ", ".join(parts + ([] if self.schedule is None else [repr(self.schedule)]))


class Call:
    """The arguments of one call, as a key and as launches of any config."""

    def __init__(
        self,
        kernel: Kernel,
        configs: Sequence[Config],
        grid: AnyGrid,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        asked: dict[str, Any],
        compile_only: bool,
    ) -> None:
        self._kernel, self._configs, self._grid = kernel, configs, grid
        self._args, self._kwargs, self._asked = args, kwargs, asked
        self._refuse_doubled()
        self.backend = backend_of(
            asked["backend"], asked["target"], asked["stream"], compile_only=compile_only
        )
        first = configs[0].constexprs
        self._params = kernel.definition.params
        bound = kernel.bind(args, {**kwargs, **first})
        self.values = dict(zip((p.name for p in self._params), bound, strict=True))

    def key(self, names: Sequence[str]) -> tuple[object, ...]:
        """Equal for calls that share a choice: `names`, and what all programs depend on."""
        chosen = {name for config in self._configs for name in config.constexprs}
        return (
            *(
                (param.name, *_fact(self.values[param.name], param, param.name in names))
                for param in self._params
                if param.name not in chosen
            ),
            self.backend.name,
            self._asked["schedule"],
            self._asked["math_mode"],
        )

    def _refuse_doubled(self) -> None:
        name = self._kernel.definition.name
        for config in self._configs:
            doubled = sorted(config.constexprs.keys() & self._kwargs.keys())
            if doubled:
                raise LaunchError(
                    f"[{name}] {doubled[0]!r} is given, and chosen by autotune",
                    hint="leave it out, or call the kernel itself: tuned.kernel[grid](...)",
                )
            if config.schedule is not None and self._asked["schedule"] is not None:
                raise LaunchError(
                    f"[{name}] schedule= is given, and chosen by autotune",
                    hint="leave it out, or take it out of the configs",
                )

    @property
    def arrays(self) -> list[Any]:
        """All arrays among the arguments."""
        return [value for value in self.values.values() if isinstance(value, mx.array)]

    @property
    def only_compiles(self) -> bool:
        """Whether the backend can't run on this machine."""
        return self.backend.available() is not None

    def shown(self, names: Sequence[str]) -> dict[str, str]:
        """What counts of these parameters, for reports."""
        return {name: _shown(self.values[name]) for name in names}

    def _launcher(self, index: int) -> tuple[Launcher, dict[str, Any]]:
        """The launcher of a config and its keywords."""
        config, grid = self._configs[index], self._grid
        if callable(grid):
            known = {p.name: self.values[p.name] for p in self._params if p.is_constexpr}
            grid = grid({**known, **config.constexprs})
        asked = dict(self._asked)
        if config.schedule is not None:
            asked["schedule"] = config.schedule
        return self._kernel[grid], {**asked, **self._kwargs, **config.constexprs}

    def work(self, index: int) -> Work:
        """Launches a config and waits for its outputs."""
        return lambda: evaluated(self.launch(index))

    def launch(self, index: int) -> Any:
        """The lazy outputs of a config."""
        launcher, options = self._launcher(index)
        return launcher(*self._args, **options)

    def prepare(self, index: int, note: str) -> Dispatch:
        """The dispatch of a config, with a note in its report; other calls share it without."""
        launcher, options = self._launcher(index)
        made = copy(launcher.prepare(*self._args, **options))
        vars(made).pop("execution_report", None)
        made.execution_report.notes.append(note)
        return made


def _fact(value: Any, param: Parameter, counts: bool) -> tuple[object, ...]:
    """Of an array the dtype, of a scalar the type; where all counts, also shape and value."""
    if isinstance(value, mx.array | Empty):
        dtype = str(value.dtype).rpartition(".")[2]
        return (dtype, tuple(value.shape)) if counts else (dtype,)
    if param.is_constexpr:
        return (token(value),)
    return (type(value).__name__, repr(value)) if counts else (type(value).__name__,)


def _shown(value: Any) -> str:
    if isinstance(value, mx.array | Empty):
        return f"{str(value.dtype).rpartition('.')[2]} {tuple(value.shape)}"
    return repr(value)


def configs_of(kernel: Kernel, given: Sequence[Mapping[str, Any]]) -> list[Config]:
    """The configs as given.

    Raises:
        CompileError: none, one twice, or one that does not fit the kernel.
    """
    names = {param.name for param in kernel.definition.params if param.is_constexpr}
    made = []
    for each in given:
        values = dict(each)
        schedule = values.pop("schedule", None)
        unknown = sorted(values.keys() - names)
        if unknown:
            raise wrong(
                kernel,
                f"a config sets {unknown[0]!r}, which is no constexpr of the kernel",
                f"its constexprs are {', '.join(sorted(names)) or 'none'}; schedule is allowed too",
            )
        if schedule is not None and not isinstance(schedule, Schedule):
            raise wrong(kernel, f"a config's schedule is {schedule!r}", "pass metile.Schedule(...)")
        made.append(Config(values, schedule))
    texts = [str(config) for config in made]
    doubled = [text for text in texts if texts.count(text) > 1]
    if doubled or not made:
        problem = f"two configs are {doubled[0]}" if doubled else "there are no configs"
        raise wrong(kernel, problem, "give one or more, each once")
    return made


def key_of(kernel: Kernel, configs: Sequence[Config], key: Sequence[str]) -> tuple[str, ...]:
    """The key as given.

    Raises:
        CompileError: it names what no call gives.
    """
    chosen = {name for config in configs for name in config.constexprs}
    names = [param.name for param in kernel.definition.params if param.name not in chosen]
    for name in key:
        if isinstance(key, str) or name not in names:
            shown = key if isinstance(key, str) else name
            raise wrong(
                kernel,
                f"key has {shown!r}, which is no parameter that a call gives",
                f"a list of some of: {', '.join(names)}",
            )
    return tuple(key)


def wrong(kernel: Kernel, problem: str, hint: str) -> CompileError:
    """An error at the kernel."""
    return CompileError(f"[autotune] {problem}", kernel.definition.loc, hint)
