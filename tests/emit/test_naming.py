"""Kernel names: a function of everything that changes the text (SPEC X1, F01, F02)."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import pytest

from metile_mlx import dtypes
from metile_mlx.emit.naming import input_passing, unique_name
from metile_mlx.emit.source import Argument


def test_a_name_is_the_function_and_sixteen_hex_digits() -> None:
    assert re.fullmatch(r"scale_[0-9a-f]{16}", unique_name("scale", "body"))
    assert re.fullmatch(r"lambda_[0-9a-f]{16}", unique_name("<lambda>", "body"))
    assert re.fullmatch(r"[a-z_]{48}_[0-9a-f]{16}", unique_name("long" * 100, "body"))
    assert unique_name("µ_norm", "ε").startswith("mu_norm_")


def test_one_function_with_two_bodies_has_two_names() -> None:
    """F01: two kernels of one name in one evaluation must not share code."""
    assert unique_name("scale", "y = x * 2;") != unique_name("scale", "y = x + 100;")


def test_names_follow_every_fact_of_the_call() -> None:
    """F02: no duplicates over dtype, size 7 or 8, 0 or 1 dimension, header, body and math mode."""
    table = [
        unique_name(function, body, header, mode, ((dtype, input_passing(size, ndim)),))
        for function in ("f", "g")
        for body, header in itertools.permutations(("a", "b", "ab", ""), 2)
        for mode in ("safe", "fast")
        for dtype in (dtypes.f16, dtypes.bf16, dtypes.f32)
        for size, ndim in ((7, 1), (8, 1), (1, 0))
    ]
    assert len(set(table)) == len(table) == 2 * 12 * 2 * 3 * 3


def test_input_passing_follows_mlx_rule() -> None:
    """F08, F09: what the signature declares."""
    assert [input_passing(n, 1) for n in (0, 1, 7, 8, 9)] == ["constant"] * 3 + ["device"] * 2
    assert input_passing(1, 0) == "reference"


def test_facts_of_equal_text_stay_apart() -> None:
    facts: list[tuple[object, ...]] = [
        ("ab", "c"), ("a", "bc"), ("abc",), (("ab", "c"),), (["ab", "c"],), (1,), (1.0,), (True,),
        ("1",), (None,), ("None",), (0.0,), (-0.0,), (b"a",), ("a",), ({"a": 1},), ({"a": "1"},),
        (dtypes.f32,), (dtypes.f16,), ("f32",), (Argument("x", "x", dtypes.f32),),
        (Argument("x", "x", dtypes.f32, True),), (dtypes.Kind.FLOAT,), ((),), (),
    ]  # fmt: skip
    assert len({unique_name("f", *fact) for fact in facts}) == len(facts)


def test_the_order_of_a_mapping_does_not_matter() -> None:
    assert unique_name("f", {"a": 1, "b": 2}) == unique_name("f", {"b": 2, "a": 1})


def test_a_fact_without_stable_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a kernel's name can't depend on a object"):
        unique_name("f", object())


def test_two_processes_agree() -> None:
    code = (
        "from metile_mlx.emit.naming import unique_name as u; from metile_mlx import dtypes as d;"
        "print(u('f', {'a': 1, 'b': (d.f32, None, 1.5)}, b'x'), end='')"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert names == {unique_name("f", {"a": 1, "b": (dtypes.f32, None, 1.5)}, b"x")}
