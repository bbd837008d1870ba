"""Locks in the child of a fork: what another thread held is free there (SPEC X4)."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx import specialise
from metile_mlx.locks import Lock


@metile.kernel
def doubled(x, y, n, TIMES: metile.constexpr):
    i = metile.arange(0, 32)
    value = metile.tensor(x, shape=n).load(i)
    metile.tensor(y, shape=n, access="write").store(i, value * TIMES)


def succeeds_in_a_child(work: Callable[[], object]) -> bool:
    with warnings.catch_warnings():
        # Python 3.12 and later warn of any fork beside threads, which is what is tested here.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_a_lock_that_another_thread_holds_is_open_in_a_child() -> None:
    lock = Lock()

    def use() -> None:
        with lock:
            pass

    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert succeeds_in_a_child(use)
        assert lock.locked()
    finally:
        release.set()
        thread.join()
    assert not lock.locked()


def test_a_fork_in_the_middle_of_a_compilation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that one thread compiles in the parent is compiled anew in the child."""
    parent = os.getpid()
    release, reached = threading.Event(), threading.Event()
    translate = specialise.translate

    def waiting(*args: Any) -> Any:
        if os.getpid() == parent:
            reached.set()
            release.wait()
        return translate(*args)

    monkeypatch.setattr(specialise, "translate", waiting)

    def compile_it() -> None:
        doubled[1].prepare(mx.ones(5), metile.empty(5, mx.float32), 5, TIMES=2, target="metal")

    thread = threading.Thread(target=compile_it)
    thread.start()
    reached.wait()
    try:
        assert succeeds_in_a_child(compile_it)
    finally:
        release.set()
        thread.join()


def test_a_failure_in_the_middle_of_a_compilation_leaves_no_lock_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even Ctrl-C does; the next call compiles."""
    x, out = mx.ones(5), metile.empty(5, mx.float32)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(specialise, "compile_kernel", interrupted)
        with pytest.raises(KeyboardInterrupt):
            doubled[1](x, out, 5, TIMES=3, backend="cpu")
    assert doubled[1](x, out, 5, TIMES=3, backend="cpu").tolist() == [3] * 5


def test_kernels_copy_and_pickle_as_functions_do() -> None:
    """A model that holds a kernel can be copied, and a kernel sent to another process."""
    assert copy.deepcopy({"kernel": doubled})["kernel"] is doubled
    assert pickle.loads(pickle.dumps(doubled)) is doubled
