"""`python -m metile_mlx`: `doctor`, `layout` and `selftest`.

Exit status: 0; 1 when METILE_BACKEND names a backend that can't run here, or when a check of the
selftest fails; 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from metile_mlx import doctor, selftest
from metile_mlx.errors import MetileError
from metile_mlx.layout import parse


def options(argv: Sequence[str]) -> argparse.Namespace:
    """The command line, read."""
    parser = argparse.ArgumentParser(prog="python -m metile_mlx", description="meTile for MLX")
    commands = parser.add_subparsers(required=True, metavar="command")

    health = commands.add_parser("doctor", help="what this machine can run, and why not the rest")
    health.add_argument("--json", action="store_true", help="print the findings as JSON")
    health.set_defaults(run=run_doctor)

    layout = commands.add_parser("layout", help="show who owns each element of a thread layout")
    layout.add_argument("layout", help='bit order and options: "3,4,5,0,1,2 xor=5 registers=2"')
    layout.add_argument("--svg", metavar="FILE", type=Path, help="also write a drawing")
    layout.add_argument(
        "--width", metavar="N", type=int, help="columns of the table (default: the terminal's)"
    )
    layout.set_defaults(run=run_layout)

    checks = commands.add_parser("selftest", help="run every kernel of the library and compare")
    checks.add_argument("--json", metavar="FILE", type=Path, help="also write all that was found")
    checks.add_argument(
        "--backend", metavar="NAME", help="metal, cpu or reference (default: the device's own)"
    )
    checks.set_defaults(run=run_selftest)
    return parser.parse_args(argv)


def run_doctor(arguments: argparse.Namespace) -> int:
    """`doctor`: print the findings; absent backends are no failure unless one was asked for."""
    found = doctor.examine()
    print(doctor.to_json(found) if arguments.json else doctor.render(found))
    return 0 if found.ok else 1


def run_layout(arguments: argparse.Namespace) -> int:
    """`layout`: print the ownership table (SPEC L6); write the drawing.

    Raises:
        LayoutError: the text is no legal layout, or the width is too small.
        MetileError: the drawing can't be written.
    """
    layout = parse(arguments.layout)
    table = layout.table(arguments.width)
    if arguments.svg is not None:
        _write(arguments.svg, layout.svg(), "[layout] can't write the drawing")
        print(f"drawing: {arguments.svg}\n")
    print(table)
    return 0


def run_selftest(arguments: argparse.Namespace) -> int:
    """`selftest`: print the table, write the file; 1 when a check fails or none ran.

    Raises:
        MetileError: the backend can't run here, or the file can't be written.
    """
    if arguments.json is not None:
        # Found out before minutes of work.
        _write(arguments.json, "", "[selftest] can't write the findings")
    found = selftest.run(arguments.backend)
    print(selftest.render(found))
    if arguments.json is not None:
        _write(
            arguments.json, selftest.to_json(found) + "\n", "[selftest] can't write the findings"
        )
        print(f"findings: {arguments.json}")
    return 0 if found.ok else 1


def _write(path: Path, text: str, problem: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MetileError(
            f"{problem} to {path}: {error.strerror}",
            hint="name a file in a folder that exists and is writable",
        ) from error


def main(argv: Sequence[str]) -> int:
    """Run one command and return the exit status."""
    arguments = options(argv)
    try:
        status: int = arguments.run(arguments)
        sys.stdout.flush()
    except MetileError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # The reader (head, less) has enough; the interpreter must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
