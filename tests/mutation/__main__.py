"""`python -m tests.mutation`: the whole suite; fails where it does not hold what it has to."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from tests.mutation import suite


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("-n", dest="workers", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(argv)
    start = time.perf_counter()
    table = suite.run(options.workers)
    print(table)
    total = table.total
    for survivor in total.survived:
        print(f"survived: {survivor}")
    print(f"{time.perf_counter() - start:.0f} s")
    faults = suite.faults(table)
    for fault in faults:
        print(f"FAILED: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
