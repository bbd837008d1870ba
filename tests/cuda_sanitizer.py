"""Runs a corpus of kernels on an NVIDIA GPU under compute-sanitizer. Python, NumPy and the driver.

    python -m tests.cuda_corpus build/cuda-sanitizer         # anywhere with nvcc
    python tests/cuda_sanitizer.py build/cuda-sanitizer      # on the GPU

First without a checker, where all results must be right; then under memcheck, racecheck, synccheck
and initcheck, which must report nothing; then each planted fault, of which racecheck must report
every one. Exits with 0 if all of that holds, with 3 if the machine lets no checker run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
REFUSED = 3
_FINDINGS = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


class Driver:
    """The calls of libcuda that a launch needs."""

    def __init__(self) -> None:
        self.cuda: Any = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.cuda, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} answers {code}")

    def module(self, path: Path) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call("cuModuleLoad", ctypes.byref(found), str(path).encode())
        return found

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found

    def memory(self, size: int) -> ctypes.c_uint64:
        found = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(found), ctypes.c_size_t(max(size, 1)))
        return found

    def put(self, data: Any) -> ctypes.c_uint64:
        data = np.ascontiguousarray(data)
        found = self.memory(data.nbytes)
        host = data.ctypes.data_as(ctypes.c_void_p)
        self.call("cuMemcpyHtoD_v2", found, host, ctypes.c_size_t(data.nbytes))
        return found

    def get(self, memory: ctypes.c_uint64, like: Any) -> None:
        host = like.ctypes.data_as(ctypes.c_void_p)
        self.call("cuMemcpyDtoH_v2", host, memory, ctypes.c_size_t(like.nbytes))

    def launch(
        self, function: ctypes.c_void_p, grid: list[int], threads: int, buffers: list[Any]
    ) -> None:
        places = [ctypes.cast(ctypes.byref(buffer), ctypes.c_void_p) for buffer in buffers]
        arguments = (ctypes.c_void_p * len(places))(*places)
        self.call("cuLaunchKernel", function, *grid, threads, 1, 1, 0, None, arguments, None)
        self.call("cuCtxSynchronize")


def run_one(driver: Driver, module: Any, launch: dict[str, Any], number: int, arrays: Any) -> str:
    """Launch; what is wrong with the outputs, or an empty text."""
    buffers = [driver.put(arrays[f"{number}_in{i}"]) for i in range(launch["inputs"])]
    made = [np.zeros(out["shape"], out["type"]) for out in launch["outputs"]]
    for like in made:
        memory = driver.memory(like.nbytes)
        if launch["zero"]:
            driver.call("cuMemsetD8_v2", memory, 0, ctypes.c_size_t(like.nbytes))
        buffers.append(memory)
    function = driver.function(module, launch["symbol"])
    driver.launch(function, launch["grid"], launch["threads"], buffers)
    wrong = []
    for position, (like, out) in enumerate(zip(made, launch["outputs"], strict=True)):
        driver.get(buffers[launch["inputs"] + position], like)
        key = f"{number}_out{position}"
        if key in arrays and not same(like, arrays[key], out["bf16"], launch["tolerance"]):
            wrong.append(f"output {position} is wrong")
    for buffer in buffers:
        driver.call("cuMemFree_v2", buffer)
    return ", ".join(wrong)


def same(got: Any, right: Any, is_bf16: bool, tolerance: list[float] | None) -> bool:
    """Equal bits, or within a relative and an absolute tolerance."""
    if tolerance is None:
        return bool(
            np.array_equal(got.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8))
        )
    if is_bf16:
        got, right = ((x.astype(np.uint32) << 16).view(np.float32) for x in (got, right))
    wide = (got.astype(np.float64).reshape(-1), right.astype(np.float64).reshape(-1))
    return bool(np.allclose(*wide, *tolerance, equal_nan=True))


def run_all(folder: Path, name: str, only: int | None) -> int:
    """Every kernel of a file, or one; prints what is wrong, and returns how many are."""
    launches = json.loads((folder / f"{name}.json").read_text())
    driver = Driver()
    modules = {name: driver.module(folder / name) for name in {one["file"] for one in launches}}
    wrong = 0
    with np.load(folder / f"{name}.npz") as arrays:
        held = {key: arrays[key] for key in arrays.files}
    for number, launch in enumerate(launches):
        if only in (None, number):
            message = run_one(driver, modules[launch["file"]], launch, number, held)
            if message:
                wrong += 1
                print(f"WRONG {launch['module']}: {launch['name']}: {message}", flush=True)
    return wrong


def checked(tool: str, folder: Path, name: str, only: int | None = None) -> tuple[int, str]:
    """Findings of one tool, -1 where it could not run, and its output."""
    program = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    command = [program, "--tool", tool, "--print-limit", "5", sys.executable, __file__]
    command += [str(folder), "--plain", name]
    command += [] if only is None else ["--only", str(only)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        return -1, str(error)
    output = done.stdout + done.stderr
    count = findings(output)
    return (-1 if count is None else count), output


def findings(output: str) -> int | None:
    """What a tool found; None where it could not run, or the program it watched broke."""
    found = _FINDINGS.search(output)
    if found is None or "not supported" in output or "Traceback" in output:
        return None
    return int(found[1] or found[2])


def examine(folder: Path) -> dict[str, Any]:
    """All of it, as what `--json` writes."""
    start = time.perf_counter()
    plain = subprocess.run(
        [sys.executable, __file__, str(folder), "--plain", "kernels"],
        capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    report: dict[str, Any] = {
        "format": 1,
        "kernels": len(json.loads((folder / "kernels.json").read_text())),
        "results": {"ok": plain.returncode == 0, "output": (plain.stdout + plain.stderr)[-4000:]},
        "tools": {},
        "planted": [],
    }
    print("results:", "right" if plain.returncode == 0 else report["results"]["output"], flush=True)
    for tool in TOOLS:
        begun = time.perf_counter()
        count, output = checked(tool, folder, "kernels")
        seconds = round(time.perf_counter() - begun, 1)
        shown = "" if count == 0 else output[-4000:]
        report["tools"][tool] = {"findings": count, "seconds": seconds, "output": shown}
        what = "could not run" if count < 0 else f"{count} findings"
        print(f"{tool}: {what}, {seconds} s\n{shown}", flush=True)
    if report["tools"]["racecheck"]["findings"] >= 0:
        for number, launch in enumerate(json.loads((folder / "planted.json").read_text())):
            count, output = checked("racecheck", folder, "planted", number)
            shown = "" if count > 0 else output[-2000:]
            report["planted"].append({"name": launch["name"], "findings": count, "output": shown})
            print(f"planted, {launch['name']}: {count} hazards", flush=True)
    report["seconds"] = round(time.perf_counter() - start, 1)
    report["ok"] = bool(
        report["results"]["ok"]
        and all(tool["findings"] == 0 for tool in report["tools"].values())
        and report["planted"]
        and all(fault["findings"] > 0 for fault in report["planted"])
    )
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", type=Path, help="where to write the findings")
    parser.add_argument(
        "--plain", metavar="NAME", help="run one file of kernels, without a checker"
    )
    parser.add_argument("--only", type=int, help="with --plain: one kernel by number")
    options = parser.parse_args()
    if options.plain:
        return int(run_all(options.folder, options.plain, options.only) > 0)
    report = examine(options.folder)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))
    refused = any(tool["findings"] < 0 for tool in report["tools"].values())
    print("ok" if report["ok"] else "FAILED", f"in {report['seconds']} s")
    return 0 if report["ok"] else REFUSED if refused and report["results"]["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
