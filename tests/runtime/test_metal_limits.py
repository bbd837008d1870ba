"""The pipeline's own limit, asked of a fake Metal before a kernel runs (SPEC X9, F17)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

import metile_mlx as metile
from metile_mlx.errors import CompileError, OutOfResources
from metile_mlx.report import Limit
from metile_mlx.runtime import metal, metal_limits, metal_prelude
from tests.support.fake_metal import FakeMetal, installed

N = 2048
NAME = "maxTotalThreadsPerThreadgroup"
MARK = f"// Auto generated source for {metal_prelude.ENTRY}\n"
EXACT = f"\n// Comment\n\n{MARK}\nusing namespace metal;\n"


def make_kernel() -> metile.Kernel:
    """A kernel of its own for each test: nothing of it is compiled yet."""

    @metile.kernel
    def doubled(x, out, n, BLOCK: metile.constexpr):  # type: ignore[no-untyped-def]
        source = metile.tensor(x, shape=(n,))
        result = metile.tensor(out, shape=(n,), access="write")
        i = metile.program_id(0) * BLOCK + metile.arange(0, BLOCK)
        result.store(i, source.load(i) * 2)

    return doubled


def prepared(kernel: metile.Kernel, block: int = 1024, **options: str) -> metile.Dispatch:
    x = mx.zeros((N,))
    return kernel[N // block].prepare(
        x, metile.empty((N,), mx.float32), N, BLOCK=block, target="metal", **options
    )


def limit(dispatch: metile.Dispatch) -> Limit:
    return {limit.name: limit for limit in dispatch.execution_report.limits}[NAME]


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metal, "_registered", type(metal._registered)())


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """An MLX whose library holds its prelude, as on macOS."""
    (tmp_path / "lib").mkdir()
    data = b"\x7fcode\0other string\0" + EXACT.encode() + b"\0// more\0"
    (tmp_path / "lib" / "libmlx.dylib").write_bytes(data)
    return tmp_path


@pytest.fixture
def fake(wheel: Path) -> Iterator[FakeMetal]:
    made = FakeMetal()
    with installed(made, mlx=wheel):
        yield made


def test_a_limit_of_1024_is_reported_as_checked(fake: FakeMetal) -> None:
    found = limit(prepared(make_kernel()))
    assert found == Limit(NAME, 1024, 1024, True)


def test_each_specialisation_is_asked_once(fake: FakeMetal) -> None:
    """X9: preparing, calling, reading the report and a second kernel object ask no more."""
    kernel = make_kernel()
    dispatch = prepared(kernel)
    assert limit(dispatch).checked
    assert dispatch.msl
    prepared(kernel)
    prepared(make_kernel())
    assert len(fake.compiled) == len(fake.pipelines) == 1
    prepared(kernel, block=512)
    prepared(kernel, math_mode="fast")
    assert len(fake.compiled) == len(fake.pipelines) == 3


def test_a_launch_asks_before_it_registers(fake: FakeMetal) -> None:
    """A launch binds the kernel whose limit `prepare` asked; another text is asked for then."""
    x = mx.zeros((N,))
    make_kernel()[2].prepare(x, metile.empty((N,), mx.float32), N, BLOCK=1024, target="metal")
    assert not metal._registered
    dispatch = prepared(make_kernel())
    dispatch.unchecked(N)
    assert len(metal._registered) == 1
    assert len(fake.compiled) == 1
    fake.limit = 64
    metal_limits._known.clear()
    with pytest.raises(OutOfResources):
        dispatch.unchecked(N - 1)


@pytest.mark.parametrize(("allowed", "block", "fitting"), [(896, 1024, 512), (64, 1024, 64)])
def test_too_many_threads_are_named_with_what_to_change(
    fake: FakeMetal, allowed: int, block: int, fitting: int
) -> None:
    """F17: never truncated; kernel, requested and allowed are named, and nothing is kept."""
    fake.limit = allowed
    kernel = make_kernel()
    for attempt in (1, 2):
        with pytest.raises(OutOfResources) as caught:
            prepared(kernel, block)
        text = str(caught.value)
        assert re.search(
            rf"kernel doubled_\w+ has {block} threads per threadgroup; .* allows {allowed},", text
        )
        assert f"hint: use {fitting} threads: 1/{block // fitting} of the elements" in text
        assert len(fake.compiled) == attempt
    assert not kernel._dispatches
    assert not metal._registered
    assert not metal_limits._known
    fake.limit = 1024
    assert limit(prepared(kernel, block)).checked


@pytest.mark.parametrize(("allowed", "block"), [(1024, 1024), (896, 512), (64, 64), (64, 32)])
def test_what_fits_runs(fake: FakeMetal, allowed: int, block: int) -> None:
    fake.limit = allowed
    assert limit(prepared(make_kernel(), block)) == Limit(NAME, block, allowed, True)


def test_less_than_a_simdgroup_is_said_plainly(fake: FakeMetal) -> None:
    fake.limit = 16
    with pytest.raises(OutOfResources, match="hint: hold fewer values at once"):
        prepared(make_kernel(), 32)


def test_text_and_options_are_those_of_mlx(fake: FakeMetal) -> None:
    """X9: prelude and recorded text; the mode asked for; the language of the system's version."""
    dispatch = prepared(make_kernel(), math_mode="relaxed")
    ((text, options),) = fake.compiled
    assert text.startswith(EXACT)
    assert text.endswith(dispatch.msl)
    assert options == {"math_mode": 1, "language": 0x30002}
    (name,) = fake.pipelines
    assert name.startswith("custom_kernel_doubled_")


@pytest.mark.parametrize(
    ("macos", "mode", "expected"),
    [
        ("14.7", "safe", {"fast_math": False, "language": 0x30001}),
        ("14.7", "fast", {"fast_math": True, "language": 0x30001}),
        ("15.0", "safe", {"math_mode": 0, "language": 0x30002}),
        ("26.2", "fast", {"math_mode": 2, "language": 0x40000}),
        ("27.0", "safe", {"math_mode": 0, "language": 0x40001}),
    ],
)
def test_options_follow_the_version_of_macos(
    wheel: Path, macos: str, mode: str, expected: dict[str, object]
) -> None:
    made = FakeMetal()
    with installed(made, macos, wheel):
        prepared(make_kernel(), math_mode=mode)
    assert made.compiled[0][1] == expected


def test_refused_text_shows_the_message_and_the_lines(fake: FakeMetal) -> None:
    """X9: a compile failure; nothing is kept, and the next attempt asks again."""
    fake.refusal = (
        "program_source: {label}:1:3: error: unknown type name 'kernal'\n"
        "{label}:2:5: error: expected ';'\n"
    )
    kernel = make_kernel()
    for attempt in (1, 2):
        with pytest.raises(CompileError) as caught:
            prepared(kernel)
        assert len(fake.compiled) == attempt
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("[metal] kernel doubled_")
    assert "unknown type name 'kernal'" in lines[1]
    shown = "\n".join(lines)
    assert "     1 | [[kernel]] void custom_kernel_doubled_" in shown
    assert "     2 |   const device float* x [[buffer(0)]],\n       |     ^" in shown
    assert "hint: METILE_DUMP=msl prints the whole text" in shown
    assert not kernel._dispatches
    assert not metal._registered
    assert not metal_limits._known


def test_refused_pipeline_is_a_compile_error(fake: FakeMetal) -> None:
    fake.pipeline_refusal = "Compiler encountered an internal error"
    with pytest.raises(CompileError, match="Metal refuses the text:\nCompiler encountered"):
        prepared(make_kernel())


def test_long_messages_are_cut(fake: FakeMetal) -> None:
    fake.refusal = "\n".join(f"note {i}" for i in range(100))
    with pytest.raises(CompileError, match=r"note 39\n\.\.\. and 60 lines more"):
        prepared(make_kernel())


def test_without_pyobjc_the_report_says_not_checked(wheel: Path) -> None:
    """X9: a missing checker stops nothing and is named."""
    with installed(None, mlx=wheel):
        found = limit(prepared(make_kernel()))
    reason = "pyobjc-framework-Metal is not installed: No module named 'Metal'"
    assert found == Limit(NAME, 1024, 1024, False, reason)


def test_without_a_device_the_report_says_so() -> None:
    assert limit(prepared(make_kernel())).note == metal_limits.NO_DEVICE


def test_without_a_prelude_the_report_says_not_checked(tmp_path: Path) -> None:
    made = FakeMetal()
    with installed(made, mlx=tmp_path):
        found = limit(prepared(make_kernel()))
    assert not found.checked
    assert "MLX's prelude is neither in" in found.note
    assert not made.compiled


def test_a_check_that_fails_itself_stops_nothing(fake: FakeMetal) -> None:
    fake.broken = AttributeError("newLibraryWithSource_options_error_")
    found = limit(prepared(make_kernel()))
    assert (found.checked, found.note) == (
        False,
        "asking Metal failed: AttributeError: newLibraryWithSource_options_error_",
    )


def test_a_prelude_of_headers_that_does_not_compile_stops_nothing() -> None:
    """Only MLX's own string is known to compile; an error in the kernel's lines still counts."""
    made = FakeMetal()
    made.refusal = "mlx/backend/metal/kernels/utils.h:7:1: error: no such type"
    with installed(made):
        found = limit(prepared(make_kernel()))
        assert not found.checked
        assert found.note.startswith("the prelude made of MLX's headers does not compile: mlx/")
    made.refusal = "{label}:1:1: error: no such type"
    with installed(made), pytest.raises(CompileError, match="no such type"):
        prepared(make_kernel())


def test_the_string_in_the_library_is_taken_whole(wheel: Path) -> None:
    found = metal_prelude.find(wheel)
    assert found == metal_prelude.Prelude(EXACT, True)


def test_headers_of_the_installed_mlx_give_the_prelude() -> None:
    """Each header once, after those it includes, and none left to be included."""
    found = metal_prelude.find(Path(mx.__file__).parent)
    assert isinstance(found, metal_prelude.Prelude)
    names = re.findall(r'^#line 1 "(.*)"$', found.text, re.MULTILINE)
    assert names[-1] == metal_prelude.ENTRY
    assert len(set(names)) == len(names) > 1
    assert "mlx/backend/metal/kernels/bf16.h" in names
    assert "bfloat16_t" in found.text
    assert not re.search(r'#include "|#pragma once', found.text)


def test_headers_in_a_circle_end(tmp_path: Path) -> None:
    folder = tmp_path / "include" / Path(metal_prelude.ENTRY).parent
    folder.mkdir(parents=True)
    (folder / "utils.h").write_text(f'#pragma once\n#include "{metal_prelude.ENTRY}"\nint a;\n')
    found = metal_prelude.find(tmp_path)
    assert isinstance(found, metal_prelude.Prelude)
    assert found.text.count("int a;") == 1


@pytest.mark.parametrize("data", [b"", b"no such text", MARK.encode() + b"\xff\0"])
def test_a_library_without_the_string_is_passed_over(tmp_path: Path, data: bytes) -> None:
    library = tmp_path / "libmlx.dylib"
    library.write_bytes(data)
    assert metal_prelude.embedded(library) is None
