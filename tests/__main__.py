"""`python -m tests`: format, lint, types and tests; all of them run, any failure fails the run."""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.support import profile

ROOT = Path(__file__).resolve().parent.parent


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the one command."""
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__)
    parser.add_argument(
        "--profile", choices=profile.PROFILES, default="ci", help="how much to try (default: ci)"
    )
    parser.add_argument(
        "--only", metavar="PATTERN", help="pytest alone, on the tests that match (as pytest -k)"
    )
    parser.add_argument(
        "--update-golden", action="store_true", help="write tests/golden instead of comparing"
    )
    parser.add_argument(
        "-n",
        dest="workers",
        type=int,
        default=min(2, os.cpu_count() or 1),
        help="processes for pytest (default: 2); 0 runs in one process",
    )
    parser.add_argument(
        "--device",
        choices=("cuda",),
        help="run a listed set of kernels there instead; it takes more options (--help)",
    )
    options, rest = parser.parse_known_args(argv)
    if rest and options.device is None:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    return options


def steps(options: argparse.Namespace) -> dict[str, list[str]]:
    """Name -> command of each step, in order."""
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest"]
    # Without the plugin the suite still runs, in one process.
    if options.workers > 0 and importlib.util.find_spec("xdist"):
        pytest += ["-n", str(options.workers), "--dist", "worksteal"]
    if options.update_golden:
        pytest += ["--update-golden"]
    if options.only:
        return {"pytest": [*pytest, "-k", options.only]}
    return {
        "ruff format": [*python, "ruff", "format", "--check", "."],
        "ruff check": [*python, "ruff", "check", "."],
        "mypy": [*python, "mypy", "--strict", "metile_mlx"],
        "pytest": pytest,
    }


def run(commands: dict[str, list[str]], profile_name: str) -> int:
    """Run every command, print its seconds, and return 1 if any failed."""
    env = {**os.environ, profile.VARIABLE: profile_name}
    # Dozens of processes import the same modules.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    results: list[tuple[str, int, float]] = []
    for name, command in commands.items():
        print(f"== {name}", flush=True)
        start = time.perf_counter()
        code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
        results.append((name, code, time.perf_counter() - start))
    print("== summary")
    for name, code, seconds in results:
        print(f"{name:<12} {'ok' if code == 0 else f'FAILED ({code})':<12} {seconds:7.1f} s")
    sys.stdout.flush()
    return int(any(code != 0 for _, code, _ in results))


def main(argv: Sequence[str]) -> int:
    options = parse(argv)
    if options.device is not None:
        command = [sys.executable, "-m", f"tests.device_{options.device}", *options.rest]
        return subprocess.run(command, cwd=ROOT, check=False).returncode
    return run(steps(options), options.profile)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
