"""One call of an autotuned kernel: what of its arguments counts, and a launch of each config."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from metile_mlx.context import Schedule
from metile_mlx.dispatch import Dispatch, Empty
from metile_mlx.errors import CompileError, LaunchError
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


class Space:
    """A kernel and what is chosen among; what all its calls share.

    Attributes:
        chosen: names of the constexprs that configs set.
        key: parameters whose shape or value counts.
    """

    def __init__(self, kernel: Kernel, configs: Sequence[Config], key: Sequence[str]) -> None:
        self.kernel = kernel
        self.configs = tuple(configs)
        self.key = tuple(key)
        self.texts = [str(config) for config in configs]
        self.chosen = frozenset(name for config in configs for name in config.constexprs)
        self.has_schedule = any(config.schedule is not None for config in configs)
        self.params = kernel.definition.params
        self.counted = tuple(
            (index, param.is_constexpr, param.name in key)
            for index, param in enumerate(self.params)
            if param.name not in self.chosen
        )


class Call:
    """The arguments of one call, as a key and as launches of any config."""

    def __init__(
        self,
        space: Space,
        grid: AnyGrid,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        asked: dict[str, Any],
        compile_only: bool,
    ) -> None:
        self._space, self._grid = space, grid
        self._args, self._kwargs, self._asked = args, kwargs, asked
        self._refuse_doubled()
        self.backend = backend_of(
            asked["backend"], asked["target"], asked["stream"], compile_only=compile_only
        )
        self._values = space.kernel.bind(args, {**kwargs, **space.configs[0].constexprs})

    def key(self) -> tuple[object, ...]:
        """Equal for calls that share a choice, in another process too."""
        values = self._values
        return (
            *[_fact(values[index], *how) for index, *how in self._space.counted],
            self.backend.name,
            self._asked["schedule"],
            self._asked["math_mode"],
        )

    def _refuse_doubled(self) -> None:
        space, name = self._space, self._space.kernel.definition.name
        doubled = sorted(space.chosen.intersection(self._kwargs))
        if doubled:
            raise LaunchError(
                f"[{name}] {doubled[0]!r} is given, and chosen by autotune",
                hint="leave it out, or call the kernel itself: tuned.kernel[grid](...)",
            )
        if space.has_schedule and self._asked["schedule"] is not None:
            raise LaunchError(
                f"[{name}] schedule= is given, and chosen by autotune",
                hint="leave it out, or take it out of the configs",
            )

    def _named(self) -> dict[str, Any]:
        return {p.name: value for p, value in zip(self._space.params, self._values, strict=True)}

    @property
    def arrays(self) -> list[Any]:
        """All arrays among the arguments."""
        return [value for value in self._values if isinstance(value, mx.array)]

    @property
    def only_compiles(self) -> bool:
        """Whether the backend can't run on this machine."""
        return self.backend.available() is not None

    def shown(self) -> dict[str, str]:
        """What counts of the key's parameters, for reports."""
        named = self._named()
        return {name: _shown(named[name]) for name in self._space.key}

    def _launcher(self, index: int) -> tuple[Launcher, dict[str, Any]]:
        """The launcher of a config and its keywords."""
        space, grid = self._space, self._grid
        config = space.configs[index]
        if callable(grid):
            named = self._named()
            known = {p.name: named[p.name] for p in space.params if p.is_constexpr}
            grid = grid({**known, **config.constexprs})
        asked = dict(self._asked)
        if config.schedule is not None:
            asked["schedule"] = config.schedule
        return space.kernel[grid], {**asked, **self._kwargs, **config.constexprs}

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


def _fact(value: Any, is_constexpr: bool, counts: bool) -> Hashable:
    """Of an array the dtype, of a scalar the type; where all counts, also shape and value."""
    kind = type(value)
    if kind is mx.array or kind is Empty:
        name = _dtype_name(value.dtype)
        return (name, tuple(value.shape)) if counts else name
    if is_constexpr:
        return token(value)
    # 0.0 == -0.0, and 1 == 1.0 == True.
    return (kind.__name__, repr(value)) if counts else kind.__name__


@functools.cache
def _dtype_name(dtype: Any) -> str:
    return str(dtype).rpartition(".")[2]


def _shown(value: Any) -> str:
    if isinstance(value, mx.array | Empty):
        return f"{_dtype_name(value.dtype)} {tuple(value.shape)}"
    return repr(value)


def configs_of(kernel: Kernel, given: Sequence[Mapping[str, Any]]) -> list[Config]:
    """The configs as given.

    Raises:
        CompileError: none, one twice, or one that does not fit the kernel.
    """
    names = {param.name for param in kernel.definition.params if param.is_constexpr}
    if not _is_list(given) or not all(isinstance(each, Mapping) for each in given):
        raise wrong(kernel, f"configs is {given!r}", "a list of dicts, constexpr -> value")
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
    if not _is_list(key):
        raise wrong(kernel, f"key is {key!r}", f"a list of some of: {', '.join(names)}")
    for name in key:
        if name not in names:
            raise wrong(
                kernel,
                f"key has {name!r}, which is no parameter that a call gives",
                f"a list of some of: {', '.join(names)}",
            )
    return tuple(key)


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def wrong(kernel: Kernel, problem: str, hint: str) -> CompileError:
    """An error at the kernel."""
    return CompileError(f"[autotune] {problem}", kernel.definition.loc, hint)
