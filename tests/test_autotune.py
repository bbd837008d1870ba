"""`metile.autotune`: the right config, once per key, kept, and reported (issue 7, K7, K8)."""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import metile_mlx as metile
from metile_mlx.autotune import _gpu

# `metile.autotune` is the function.
autotune = importlib.import_module("metile_mlx.autotune")
N = 300
CONFIGS = [{"BLOCK": 32}, {"BLOCK": 64}, {"BLOCK": 128}]


@metile.kernel
def scaled(x, out, n, by: float, BLOCK: metile.constexpr, WRONG: metile.constexpr = 0):
    i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
    value = metile.tensor(x, shape=n).load(i) * by
    if WRONG == BLOCK:
        value = value + 1.0
    metile.tensor(out, shape=n, access="write").store(i, value)


class Clock:
    """Seconds that stand still but for what a launch of each BLOCK is said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes: dict[int, float]) -> None:
        self.now, self.launches, self.takes = 0.0, [], takes
        launch = metile.Launcher.__call__

        def counted(launcher: Any, *args: Any, **kwargs: Any) -> Any:
            self.launches.append(kwargs["BLOCK"])
            self.now += self.takes[kwargs["BLOCK"]]
            return launch(launcher, *args, **kwargs)

        monkeypatch.setattr(metile.Launcher, "__call__", counted)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clock:
    """And a cache folder of its own, in which no choice is kept yet."""
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path / "cache"))
    return Clock(monkeypatch, {32: 3.0, 64: 1.0, 128: 2.0})


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled here: which config runs does not depend on the backend."""
    monkeypatch.setenv("METILE_BACKEND", "reference")


def grid(config: Any) -> int:
    return metile.cdiv(N, config["BLOCK"])


def tuned_by(clock: Callable[[], float], configs: Any = CONFIGS, **options: Any) -> Any:
    return metile.autotune(configs, clock=clock, rounds=3, **options)(scaled)


def data(n: int = N, dtype: Any = mx.float32) -> mx.array:
    return mx.arange(n).astype(dtype)


def test_the_smallest_median_wins(clock: Clock) -> None:
    tuned = tuned_by(clock)
    y = tuned[grid](data(), metile.empty(N, mx.float32), N, 0.5)
    assert mx.array_equal(y, data() * 0.5)
    assert clock.launches[-1] == 64
    (report,) = tuned.reports
    assert report.chosen == "BLOCK=64"
    assert report.how == "the fastest of 3, by the medians of 3 rounds"
    assert [(each.config, each.seconds) for each in report.candidates] == [
        ("BLOCK=32", 3.0),
        ("BLOCK=64", 1.0),
        ("BLOCK=128", 2.0),
    ]
    assert "BLOCK=128: 2000000.0 us" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["chosen"] == "BLOCK=64"


def test_rounds_begin_with_another_config_each(clock: Clock) -> None:
    tuned_by(clock)[grid].tune(data(), metile.empty(N, mx.float32), N, 0.5)
    # Checks, one launch each to count by, three rounds.
    assert clock.launches == [32, 64, 128] * 2 + [32, 64, 128, 64, 128, 32, 128, 32, 64]


def test_a_choice_is_made_once_for_each_key(clock: Clock) -> None:
    tuned = tuned_by(clock, key=["x", "by"])
    call = tuned[grid]
    for _ in range(3):
        call(data(), metile.empty(N, mx.float32), N, 0.5)
    assert len(clock.launches) == 15 + 3
    # What the key doesn't name: another n, and an output of another shape.
    call(data(), metile.empty(N + 1, mx.float32), N - 1, 0.5)
    assert len(clock.launches) == 19
    changes = [
        lambda: call(data(N + 8), metile.empty(N, mx.float32), N, 0.5),
        lambda: call(data(), metile.empty(N, mx.float32), N, 0.25),
        lambda: call(data(dtype=mx.float16), metile.empty(N, mx.float16), N, 0.5),
        lambda: call(data(), metile.empty(N, mx.float32), N, 0.5, WRONG=1),
        lambda: call(data(), metile.empty(N, mx.float32), N, 0.5, math_mode="fast"),
    ]
    for number, change in enumerate(changes):
        change()
        assert len(tuned.reports) == number + 2
    assert tuned.reports[1].key == {"x": f"float32 ({N + 8},)", "by": "0.5"}


def test_outside_values_belong_to_the_key(clock: Clock) -> None:
    """K1: a change of what a kernel reads from outside compiles, and tunes, anew."""
    factor = 2

    @metile.kernel
    def timed(x, out, BLOCK: metile.constexpr):
        i = metile.arange(0, BLOCK)
        value = metile.tensor(x, shape=32).load(i) * factor
        metile.tensor(out, shape=32, access="write").store(i, value)

    tuned = metile.autotune([{"BLOCK": 32}, {"BLOCK": 64}], clock=clock, rounds=1)(timed)
    x = mx.ones(32)
    assert tuned[1](x, metile.empty(32, mx.float32)).max() == 2
    factor = 3
    assert tuned[1](x, metile.empty(32, mx.float32)).max() == 3
    assert len(tuned.reports) == 2


def test_what_disagrees_is_left_out(clock: Clock) -> None:
    """The fastest config stores something else."""
    tuned = tuned_by(clock)
    report = tuned[grid].tune(data(), metile.empty(N, mx.float32), N, 0.5, WRONG=64)
    assert report.chosen == "BLOCK=128"
    assert report.candidates[1].seconds is None
    assert report.candidates[1].left_out == (
        "left out: output 0 differs from the first config's in 300 elements; at [0] it is 1.0, "
        "there 0.0"
    )
    y = tuned[grid](data(), metile.empty(N, mx.float32), N, 0.5, WRONG=64)
    assert mx.array_equal(y, data() * 0.5)


def test_a_check_of_ones_own_decides(clock: Clock) -> None:
    near = tuned_by(clock, check=lambda made, first: bool(mx.abs(made[0] - first[0]).max() <= 1))
    report = near[grid].tune(data(), metile.empty(N, mx.float32), N, 0.5, WRONG=64)
    assert report.chosen == "BLOCK=64"
    never = tuned_by(clock, check=lambda made, first: False)
    report = never[grid].tune(data(), metile.empty(N, mx.float32), N, 0.5)
    assert report.chosen == "BLOCK=32"
    assert "do not pass the check" in report.candidates[2].left_out


def test_what_can_not_run_is_left_out(clock: Clock) -> None:
    """A block that is no power of two can't be compiled; with such blocks alone nothing runs."""
    tuned = tuned_by(clock, [{"BLOCK": 48}, {"BLOCK": 64}])
    clock.takes[48] = clock.takes[40] = 0.1
    report = tuned[grid].tune(data(), metile.empty(N, mx.float32), N, 0.5)
    assert report.chosen == "BLOCK=64"
    assert "48" in report.candidates[0].left_out
    none = tuned_by(clock, [{"BLOCK": 48}, {"BLOCK": 40}])
    with pytest.raises(metile.LaunchError, match=r"none of its 2 configs runs: BLOCK=48: left out"):
        none[grid](data(), metile.empty(N, mx.float32), N, 0.5)
    assert none.reports == ()


def test_choices_outlive_the_process(clock: Clock, tmp_path: Path) -> None:
    """Another object reads what the first has kept; a damaged file is measured anew."""
    tuned_by(clock)[grid](data(), metile.empty(N, mx.float32), N, 0.5)
    (kept,) = (tmp_path / "cache").glob("tuned-*.json")
    clock.launches.clear()
    again = tuned_by(clock)
    again[grid](data(), metile.empty(N, mx.float32), N, 0.5)
    assert clock.launches == [64]
    assert again.reports[0].candidates[0].seconds == 3.0
    tuned_by(clock, CONFIGS[:2])[grid](data(), metile.empty(N, mx.float32), N, 0.5)
    assert len(list((tmp_path / "cache").glob("tuned-*.json"))) == 2
    for damage in ("", "{", "[]", '{"candidates": [{}]}', '{"candidates": []}'):
        kept.write_text(damage, encoding="utf-8")
        clock.launches.clear()
        tuned_by(clock)[grid](data(), metile.empty(N, mx.float32), N, 0.5)
        assert len(clock.launches) == 16, damage
    assert json.loads(kept.read_text(encoding="utf-8"))["chosen"] == "BLOCK=64"


def test_a_choice_holds_for_its_device_versions_and_text(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change is measured anew, and the first choice is still there afterwards."""

    @metile.kernel
    def scaled(x, out, n, by: float, BLOCK: metile.constexpr, WRONG: metile.constexpr = 0):
        i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
        value = metile.tensor(x, shape=n).load(i) * by * 1.0
        metile.tensor(out, shape=n, access="write").store(i, value)

    def launches(kernel: metile.Kernel) -> int:
        clock.launches.clear()
        tuned = metile.autotune(CONFIGS, clock=clock, rounds=3)(kernel)
        tuned[grid](data(), metile.empty(N, mx.float32), N, 0.5)
        return len(clock.launches)

    original = globals()["scaled"]
    assert launches(original) == 16
    assert launches(scaled) == 16
    with monkeypatch.context() as patch:
        patch.setattr(autotune, "_device", lambda backend: "another")
        assert launches(original) == 16
    with monkeypatch.context() as patch:
        patch.setattr(autotune, "versions", lambda: {"mlx": "0.0", "metile-mlx": "0.0"})
        assert launches(original) == 16
    assert launches(original) == launches(scaled) == 1
    assert len(list((tmp_path / "cache").glob("tuned-*.json"))) == 4


@pytest.mark.parametrize("mode", [0o777, None])
def test_without_a_folder_choices_live_as_long_as_the_process(
    clock: Clock, tmp_path: Path, mode: int | None
) -> None:
    """X4: a folder that others may write to is not used; one that can't be made is not there."""
    folder = tmp_path / "cache"
    if mode is None:
        folder.write_text("a file", encoding="utf-8")
    else:
        folder.mkdir()
        folder.chmod(mode)
    tuned = tuned_by(clock)
    for _ in range(2):
        tuned[grid](data(), metile.empty(N, mx.float32), N, 0.5)
    assert len(clock.launches) == 15 + 2
    assert mode is None or list(folder.iterdir()) == []


def test_traced_calls_take_what_is_known(clock: Clock) -> None:
    """X7: under mx.compile and mx.vmap arguments have no values, and nothing is evaluated."""
    tuned = tuned_by(clock)

    def call(x: mx.array) -> mx.array:
        return tuned[grid](x, metile.empty(N, mx.float32), N, 0.5)

    assert mx.array_equal(mx.compile(call)(data()), data() * 0.5)
    assert clock.launches == [32]
    (report,) = tuned.reports
    assert report.chosen == "BLOCK=32"
    assert report.how == "the first config: nothing was measured, since a traced call can't"
    assert mx.array_equal(mx.vmap(call)(data()[None]), data()[None] * 0.5)
    call(data())
    assert clock.launches[-1] == 64
    assert mx.array_equal(mx.compile(lambda x: call(x))(data()), data() * 0.5)
    assert clock.launches[-1] == 64
    (report,) = tuned.reports
    assert report.chosen == "BLOCK=64"
    other = tuned_by(clock)
    mx.eval(mx.compile(lambda x: other[grid](x, metile.empty(N, mx.float32), N, 0.5))(data()))
    assert other.reports == (report,)


def test_gradients_measure_on_the_arguments(clock: Clock) -> None:
    """X7: under mx.grad arguments have values, and the choice has the kernel's gradient."""
    tuned = tuned_by(clock)

    def loss(x: mx.array) -> mx.array:
        return tuned[grid](x, metile.empty(N, mx.float32), N, 0.5).sum()

    assert mx.array_equal(mx.grad(loss)(data()), mx.full(N, 0.5))
    assert tuned.reports[0].chosen == "BLOCK=64"


def test_prepare_returns_the_choice(clock: Clock) -> None:
    tuned = tuned_by(clock)
    empty = metile.empty(N, mx.float32)
    dispatch = tuned[grid].prepare(data(), empty, N, 0.5)
    assert dispatch.grid == (5, 1, 1)
    assert mx.array_equal(dispatch(data(), empty, N, 0.25), data() * 0.25)
    note = "autotune: BLOCK=64: the fastest of 3, by the medians of 3 rounds"
    assert note in dispatch.execution_report.notes
    assert note in dispatch.explain()
    # A dispatch of the kernel itself has no such note.
    plain = scaled[grid({"BLOCK": 64})].prepare(data(), empty, N, 0.5, BLOCK=64)
    assert note not in plain.execution_report.notes


def test_a_backend_that_can_not_run_takes_the_first(clock: Clock) -> None:
    """X2: texts for Metal are made on any machine, and nothing is measured for them."""
    tuned = tuned_by(clock)
    dispatch = tuned[grid].prepare(data(), metile.empty(N, mx.float32), N, 0.5, target="cuda")
    assert dispatch.grid == (10, 1, 1)
    assert clock.launches == []
    assert "since this backend can't run here" in tuned.reports[0].how


def test_schedules_combine(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """K8: of the config, else of the call, else of the kernel; not of config and call at once."""
    seen: list[Any] = []
    launch = metile.Launcher.__call__

    def noted(launcher: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["schedule"])
        return launch(launcher, *args, **kwargs)

    monkeypatch.setattr(metile.Launcher, "__call__", noted)
    one = metile.Schedule(vector_width=1)
    tuned = tuned_by(clock, [{"BLOCK": 64}, {"BLOCK": 64, "schedule": one}])
    arguments = (data(), metile.empty(N, mx.float32), N, 0.5)
    tuned[grid](*arguments)
    assert {None, one} == set(seen)
    with pytest.raises(metile.LaunchError, match="schedule= is given, and chosen by autotune"):
        tuned[grid](*arguments, schedule=one)
    seen.clear()
    plain = tuned_by(clock)
    plain[grid](*arguments, schedule=one)
    assert set(seen) == {one}


def test_threads_measure_once(clock: Clock) -> None:
    """Eight at once: one measures, the others wait for its choice."""
    tuned = tuned_by(clock)
    results: list[Any] = []

    def call() -> None:
        y = tuned[grid](data(), metile.empty(N, mx.float32), N, 0.5, stream=mx.cpu)
        mx.eval(y)
        results.append(np.array(y))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert all(np.array_equal(each, np.arange(N) * 0.5) for each in results)
    assert len(clock.launches) == 15 + 8


def test_progress_is_one_line_and_only_if_wanted(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned_by(clock)[grid].tune(data(), metile.empty(N, mx.float32), N, 0.5)
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("METILE_VERBOSE", "1")
    tuned_by(clock)[grid].tune(data(), metile.empty(N, mx.float32), N, 0.25, math_mode="fast")
    line = "metile: tuning scaled, 3 configs: BLOCK=64, 1000000.0 us\n"
    assert capsys.readouterr().err == line
    monkeypatch.setenv("METILE_VERBOSE", "yes")
    with pytest.raises(metile.MetileError, match="METILE_VERBOSE='yes'; expected 0 or 1"):
        tuned_by(clock)[grid].tune(
            data(), metile.empty(N, mx.float32), N, 0.125, math_mode="relaxed"
        )


@pytest.mark.parametrize(
    ("configs", "options", "message"),
    [
        ([], {}, "there are no configs"),
        ([{"BLOCK": 32}, {"BLOCK": 32}], {}, "two configs are BLOCK=32"),
        ([{"n": 32}], {}, "a config sets 'n', which is no constexpr"),
        ([{"BLOCK": 32, "schedule": 4}], {}, "a config's schedule is 4"),
        (CONFIGS, {"key": ["z"]}, "key has 'z', which is no parameter"),
        (CONFIGS, {"key": ["BLOCK"]}, "key has 'BLOCK', which is no parameter that a call gives"),
        (CONFIGS, {"key": "x"}, "key is 'x'"),
        (CONFIGS, {"key": 5}, "key is 5"),
        (None, {}, "configs is None"),
        ([5], {}, r"configs is \[5\]"),
        ({"BLOCK": 32}, {}, "configs is {'BLOCK': 32}"),
        (CONFIGS, {"rounds": 0}, "rounds is 0"),
    ],
)
def test_what_does_not_fit_the_kernel_is_refused(configs: Any, options: Any, message: str) -> None:
    with pytest.raises(metile.CompileError, match=message):
        metile.autotune(configs, **options)(scaled)


def test_calls_that_do_not_fit_are_refused(clock: Clock) -> None:
    tuned = tuned_by(clock)
    with pytest.raises(metile.LaunchError, match="'BLOCK' is given, and chosen by autotune"):
        tuned[grid](data(), metile.empty(N, mx.float32), N, 0.5, BLOCK=32)
    with pytest.raises(metile.LaunchError, match="launched over a grid"):
        tuned(data())
    with pytest.raises(metile.LaunchError, match="missing argument 'by'"):
        tuned[grid](data(), metile.empty(N, mx.float32), N)
    with pytest.raises(metile.CompileError, match="takes a kernel, got function"):
        metile.autotune(CONFIGS)(lambda x: x)  # type: ignore[arg-type]


def test_the_clock_by_default_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With real time, on the cpu backend, one of the configs is chosen."""
    monkeypatch.setenv("METILE_BACKEND", "cpu")
    tuned = metile.autotune([{"BLOCK": 32}, {"BLOCK": 128}], key=["n"], rounds=2)(scaled)
    y = tuned[grid](data(), metile.empty(N, mx.float32), N, 3.0)
    assert mx.array_equal(y, data() * 3.0)
    assert all(each.seconds and each.seconds > 0 for each in tuned.reports[0].candidates)


def test_a_gpu_is_known_by_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice holds on another GPU of the kind, whatever its memory is used for; on no other."""
    info = {"device_name": "NVIDIA H200", "architecture": "sm_90", "free_memory": "7", "uuid": "a"}
    monkeypatch.setattr(mx, "device_info", lambda: info)
    known = _gpu()
    info |= {"free_memory": "8", "uuid": "b"}
    assert _gpu() == known
    info["device_name"] = "NVIDIA H100"
    assert _gpu() != known
