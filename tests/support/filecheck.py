"""CHECK comments in the body of a kernel, matched in process against what a step prints."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from filecheck.finput import FInput
from filecheck.matcher import Matcher
from filecheck.options import Options
from filecheck.parser import Parser


def filecheck(text: str, checks: str | Callable[..., object], prefix: str = "CHECK") -> None:
    """Assert that `text` satisfies the CHECK lines of `checks`: text, or a function.

    Raises:
        AssertionError: shows filecheck's report and the whole text.
        ValueError: there is no CHECK line, so that the test could not fail.
    """
    source = checks if isinstance(checks, str) else inspect.getsource(checks)
    if f"{prefix}:" not in source and f"{prefix}-" not in source:
        raise ValueError(f"no {prefix} line to match")
    report = io.StringIO()
    with TemporaryDirectory() as folder, contextlib.redirect_stderr(report):
        path = Path(folder) / "checks"
        path.write_text(source, encoding="utf-8")
        options = Options(match_filename=str(path), check_prefixes=[prefix])
        with contextlib.redirect_stdout(report):
            code = Matcher(options, FInput("<text>", text), Parser.from_opts(options)).run()
    assert code == 0, f"{report.getvalue()}\nin:\n{text}"
