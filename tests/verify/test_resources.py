"""Threadgroup memory and threads against the target's limits (F18, X9)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metile_mlx.context import Stage
from metile_mlx.dtypes import DType, bf16, f16, f32, i32, u16
from metile_mlx.errors import OutOfResources
from metile_mlx.ir import metal, planned
from metile_mlx.ir.core import Builder, Func
from metile_mlx.layout.thread_layout import ThreadLayout
from metile_mlx.passes.infer_ownership import infer_ownership
from metile_mlx.passes.plan_conversions import plan_conversions
from metile_mlx.target import METAL
from metile_mlx.verify import verify
from tests.support.build import Program, chain_program, context

HINT = "use a smaller tile or a narrower dtype, or convert fewer dtypes in one kernel"


def kernel(stage: Stage, *parts: tuple[DType, int]) -> Func:
    """A kernel that only allocates."""
    b = Builder()
    for dtype, elements in parts:
        kind = planned.Scratch if stage is Stage.PLANNED else metal.ThreadgroupAlloc
        b.add(kind(dtype, elements, f"scratch_{dtype}"))
    return Func("kernel", (), b.block(), threads=1024)


@pytest.mark.parametrize("stage", [Stage.PLANNED, Stage.THREAD])
def test_f18_32768_bytes_are_accepted_and_32772_are_not(stage: Stage) -> None:
    verify(kernel(stage, (f32, 8192)), stage, context())
    verify(kernel(stage, (f32, 4096), (f16, 8192)), stage, context())
    with pytest.raises(OutOfResources) as caught:
        verify(kernel(stage, (f32, 8193)), stage, context())
    assert caught.value.message == (
        "[kernel] asks for 32772 bytes of threadgroup memory, metal has 32768: "
        "scratch_f32 8193 x f32 = 32772"
    )
    assert caught.value.hint == HINT


def test_f18_the_error_breaks_the_sum_down() -> None:
    func = kernel(Stage.PLANNED, (f32, 4096), (i32, 4096), (u16, 1))
    with pytest.raises(OutOfResources) as caught:
        verify(func, Stage.PLANNED, context())
    assert caught.value.message == (
        "[kernel] asks for 32770 bytes of threadgroup memory, metal has 32768: scratch_f32 4096 x "
        "f32 = 16384, scratch_i32 4096 x i32 = 16384, scratch_u16 1 x u16 = 2"
    )


def test_a_planned_kernel_beyond_a_smaller_target() -> None:
    rows, identity = ThreadLayout((3, 4, 5, 0, 1, 2)), ThreadLayout.identity(64)
    func = chain_program(None, [(rows, f32), (identity, f32), (rows, bf16)])
    ctx = context(replace(METAL, name="tiny", threadgroup_bytes=383))
    planned_func = plan_conversions(infer_ownership(func, ctx), ctx)
    with pytest.raises(OutOfResources) as caught:
        verify(planned_func, Stage.PLANNED, ctx)
    assert caught.value.message == (
        "[kernel] asks for 384 bytes of threadgroup memory, tiny has 383: scratch_f32 64 x f32 = "
        "256, scratch_u16 64 x u16 = 128"
    )
    verify(planned_func, Stage.PLANNED, context(replace(METAL, threadgroup_bytes=384)))


def test_x9_more_threads_than_the_target_has() -> None:
    p = Program("wide")
    func = replace(p.func(), threads=1024)
    verify(func, Stage.PLANNED, context())
    with pytest.raises(OutOfResources) as caught:
        verify(func, Stage.PLANNED, context(replace(METAL, max_threads=512)))
    assert caught.value.message == (
        "[wide] asks for 1024 threads, metal has at most 512 per threadgroup"
    )
