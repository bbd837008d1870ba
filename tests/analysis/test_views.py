"""What views need of the arrays given to them (SPEC X8, X10)."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metile_mlx.analysis.views import (
    HostExpr,
    View,
    ViewChecks,
    check,
    max_offset,
    needs_64_bit,
    required_elements,
    size_name,
    views,
    with_grid,
)
from metile_mlx.dtypes import f16, f32, i32
from metile_mlx.errors import CompileError, LaunchError
from metile_mlx.ir import tile
from metile_mlx.ir.arith import BinaryKind
from tests.support.tile_program import TileProgram, transpose8


def view(shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    return View("x", "read", f32, tuple(map(HostExpr, shape)), tuple(map(HostExpr, strides)))


def test_views_state_extents_and_strides_as_numbers_scalars_and_products() -> None:
    p = TileProgram()
    n, m = p.scalar("n"), p.scalar("m")
    p.tensor("x", (n, m, 4), "read", dtype=f16)
    p.tensor("y", (8, n, m), "read_write")
    x, y = views(p.func())
    assert (x.param, x.access, x.dtype) == ("x", "read", f16)
    assert [str(e) for e in x.shape] == ["n", "m", "4"]
    assert [str(e) for e in x.strides] == ["4 * m", "4", "1"]
    assert [str(e) for e in y.strides] == ["m * n", "m", "1"]
    assert (x.names, y.access) == (("m", "n"), "read_write")
    assert x.geometry({"n": 3, "m": 5}) == ((3, 5, 4), (20, 4, 1))
    assert HostExpr(2, ("a", "a")).evaluate({"a": 7}) == 98


def test_extents_of_the_grid_are_numbers_the_host_knows() -> None:
    """SPEC X10: `num_programs(axis)`, alone or times others; with_grid gives their values."""
    p = TileProgram()
    rows, layers = p.add(tile.NumPrograms(0), "rows"), p.add(tile.NumPrograms(2), "layers")
    p.tensor("x", (layers, rows, p.scalar("n")), "read")
    (x,) = views(p.func())
    assert [str(e) for e in x.shape] == ["num_programs(2)", "num_programs(0)", "n"]
    assert x.names == ("n", "num_programs(0)", "num_programs(2)")
    numbers = with_grid({"n": 5}, (3, 7, 2))
    assert x.geometry(numbers) == ((2, 3, 5), (15, 5, 1))
    assert required_elements(x, numbers) == 30
    with pytest.raises(LaunchError, match=r"shape \(2, 3, 5\).* with n=5, num_programs\(0\)=3"):
        check((x,), numbers, {"x": 29})
    assert not needs_64_bit((x,), numbers)
    assert needs_64_bit((x,), with_grid({"n": 2**30}, (3, 1, 1)))


def test_an_extent_the_host_cannot_work_out_is_refused_at_its_line() -> None:
    p = TileProgram()
    n = p.scalar("n")
    p.tensor("x", (p.op(BinaryKind.FLOORDIV, n, 2),), "read")
    with pytest.raises(CompileError, match=r"an extent or stride of x is computed, expected") as e:
        views(p.func())
    assert e.value.loc is not None
    assert e.value.loc.line == p.line


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=0, max_size=3),
)
def test_required_elements_is_one_past_the_last_reachable_offset(
    dims: list[tuple[int, int]],
) -> None:
    shape, strides = tuple(d[0] for d in dims), tuple(d[1] for d in dims)
    reached = {
        sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)
    }
    assert required_elements(view(shape, strides), {}) == max(reached, default=-1) + 1
    assert max_offset(view(shape, strides), {}) == max(reached, default=-1)


def test_x8_offsets_are_64_bits_wide_exactly_where_one_can_pass_two_to_the_31() -> None:
    for extent, wide in ((2**31 - 1, False), (2**30 + 1, True)):
        step = 1 if not wide else 2
        one = view((extent,), (step,))
        assert needs_64_bit((one,), {}) is wide
        assert max_offset(one, {}) == (extent - 1) * step
    edge = view((2, 2**16), (2**31 - 2**16, 1))
    assert (max_offset(edge, {}), needs_64_bit((edge,), {})) == (2**31 - 1, False)
    beyond = view((2, 2**16 + 1), (2**31 - 2**16, 1))
    assert (max_offset(beyond, {}), needs_64_bit((beyond,), {})) == (2**31, True)
    assert check((beyond,), {}, {"x": 2**31 + 1}) == 64
    # F21: rows that each fit, 2**32 elements in all.
    rows = view((2**20, 4096), (4096, 1))
    assert check((rows,), {}, {"x": 2**32}) == 64


def test_x10_too_small_an_array_is_refused_with_parameter_needed_and_given() -> None:
    found = views(transpose8().func())
    checks = ViewChecks(found)
    sizes = {"source": 192, "result": 192}
    assert checks({"n": 3}, sizes) == 32
    assert checks({"n": 0}, {"source": 0, "result": 0}) == 32
    with pytest.raises(LaunchError) as e:
        checks({"n": 3}, sizes | {"result": 191})
    assert e.value.message == (
        "[tensor] result: its view needs 192 elements (shape (3, 8, 8), strides (64, 8, 1), "
        "with n=3), the array given has 191"
    )
    assert e.value.hint == "pass a larger array, or declare the shape it has"
    assert e.value.loc == found[1].loc
    # A remembered answer depends on nothing but the scalars.
    assert checks({"n": 3, "other": 9}, sizes) == 32


def test_x10_two_views_of_one_array_both_count() -> None:
    p = TileProgram()
    p.tensor("x", (4,), "read")
    p.tensor("x", (2, 3), "read")
    found = views(p.func())
    with pytest.raises(LaunchError, match=r"needs 6 elements \(shape \(2, 3\), strides \(3, 1\)\)"):
        check(found, {}, {"x": 5})
    assert check(found, {}, {"x": 6}) == 32


def test_x10_a_scalar_loaded_from_an_array_of_one_element_is_not_known() -> None:
    """How a scalar given as an MLX array appears: an array parameter, loaded under its name."""
    p = TileProgram()
    entry = p.tensor("n", (1,), "read", dtype=i32)
    n = p.add(tile.Load(entry, (p.number(0),), given=True), "n")
    p.tensor("x", (n, 4), "read")
    checks = ViewChecks(views(p.func()))
    assert checks({}, {"n": 1, "x": 0}) == 64
    assert checks.unchecked({}) == ("x",)
    other = p.add(tile.Load(entry, (p.number(0),)), "other")
    p.tensor("y", (other,), "read")
    with pytest.raises(CompileError, match=r"\[tensor\] other of y is computed, expected a number"):
        views(p.func())


def test_negative_extents_and_strides_are_refused() -> None:
    found = views(transpose8().func())
    with pytest.raises(LaunchError) as e:
        check(found, {"n": -1}, {"source": 64, "result": 64})
    assert e.value.message == (
        "[tensor] source: extent 0 of its view is -1 (n), expected 0 to 2147483647"
    )
    assert e.value.hint == "pass scalars that make the extents of source fit"
    with pytest.raises(LaunchError, match=r"x: stride 1 of its view is -2, expected 0 to"):
        check((view((2, 2), (2, -2)),), {}, {"x": 64})


def test_x8_a_stride_past_31_bits_is_an_error_unless_only_index_0_uses_it() -> None:
    wide = View(
        "x", "read", f32, (HostExpr(2), HostExpr(1)), (HostExpr(1, ("n", "n")), HostExpr(1))
    )
    with pytest.raises(LaunchError, match=r"stride 0 of its view is 10000000000 \(n \* n\)"):
        check((wide,), {"n": 100_000}, {"x": 2**40})
    single = View("x", "read", f32, (HostExpr(1),), (HostExpr(1, ("n", "n")),))
    assert check((single,), {"n": 100_000}, {"x": 1}) == 32


def test_x10_a_scalar_given_as_an_mlx_array_turns_the_check_off_and_the_width_to_64() -> None:
    p = transpose8()
    p.tensor("fixed", (4,), "read")
    checks = ViewChecks(views(p.func()))
    sizes = {"source": 1, "result": 1, "fixed": 4}
    assert checks({}, sizes) == 64
    assert checks.unchecked({}) == ("source", "result")
    assert checks.unchecked({"n": 1}) == ()
    with pytest.raises(LaunchError, match=r"fixed: its view needs 4 elements"):
        checks({}, sizes | {"fixed": 3})
    with pytest.raises(KeyError):
        required_elements(views(p.func())[0], {})


def test_x8_an_array_too_large_for_pointers_asks_for_a_view() -> None:
    whole = View("x", "read", f32, (HostExpr(1, (size_name("x"),)),), (HostExpr(1),))
    with pytest.raises(LaunchError, match=re.escape("2147483648 (size(x)), expected")) as e:
        whole.geometry({size_name("x"): 2**31})
    assert e.value.hint is not None
    assert "metile.tensor(x, ...)" in e.value.hint
