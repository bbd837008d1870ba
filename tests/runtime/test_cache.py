"""The cache folder: private, complete files only, named by all that matters (SPEC X4)."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from metile_mlx.errors import BackendError
from metile_mlx.runtime import cache


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "cache"
    monkeypatch.setenv("METILE_CACHE_DIR", str(path))
    return path


def test_folder_is_made_for_its_owner_alone(folder: Path) -> None:
    assert cache.folder() == folder
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    cache.folder()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(BackendError, match=f"{folder} belongs to user {owner}, and this process"):
        cache.folder()


def test_folder_that_others_may_write_to_is_refused(folder: Path) -> None:
    cache.folder().chmod(0o777)
    with pytest.raises(BackendError, match=r"may write to .* \(mode 0777, expected 0700\)"):
        cache.folder()


def test_folder_that_can_not_be_made_is_an_error(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("METILE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(BackendError, match="can't be made: Not a directory"):
        cache.folder()


def test_keys_tell_parts_apart() -> None:
    assert cache.key("ab", "c") != cache.key("a", "bc") != cache.key("abc")
    assert cache.key("a", "b") == cache.key("a", "b")
    assert len(cache.key()) == 32


def test_a_file_is_built_once_and_complete() -> None:
    built = []

    def build(scratch: Path) -> Path:
        built.append(scratch)
        (scratch / "rest").write_text("left behind")
        (scratch / "out").write_text("text")
        return scratch / "out"

    first, second = cache.publish("name", build), cache.publish("name", build)
    assert first == second
    assert first.read_text() == "text"
    assert len(built) == 1
    assert os.listdir(cache.folder()) == ["name"]


def test_a_build_that_fails_leaves_nothing() -> None:
    def build(scratch: Path) -> Path:
        (scratch / "half").write_text("te")
        raise ValueError("disk")

    with pytest.raises(ValueError, match="disk"):
        cache.publish("name", build)
    assert os.listdir(cache.folder()) == []


def test_builders_that_race_publish_one_whole_file() -> None:
    barrier = threading.Barrier(4)

    def build(scratch: Path) -> Path:
        barrier.wait()
        (scratch / "out").write_text("whole" * 10_000)
        return scratch / "out"

    threads = [threading.Thread(target=cache.publish, args=("name", build)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (cache.folder() / "name").read_text() == "whole" * 10_000
    assert os.listdir(cache.folder()) == ["name"]


def test_the_lock_admits_one_at_a_time() -> None:
    inside = []

    def work() -> None:
        with cache.locked("job"):
            inside.append(1)
            assert sum(inside) == 1
            inside.append(-1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert inside == [1, -1] * 8


def test_cpu_features_name_the_machine() -> None:
    assert cache.cpu_features().split()[0] == os.uname().machine
    assert len(cache.cpu_features().split()) > 1
