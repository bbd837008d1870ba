"""Models of mlx-lm with `metile.patch` beside the same models in MLX, on the backend at hand.

    python -m benchmarks.model [--quick] [--only NAMES] [--dtypes NAMES] [--output-json FILE]
                               [--add] [--strict]

Each model is built twice with the same random weights, and one of the two is patched. Three things
are timed, the two models alternating in one process:

- prefill: the logits of a prompt, batch 1;
- decode: one token after the prompt with a cache, the mean over several; both models are given the
  tokens that MLX's model finds;
- step: loss and gradients of a batch, as one `mx.compile`d function.

Before anything is timed, logits and tokens are compared: those of the prompt as `metile.patch`
does (its report is in the file), those of each decoded step, and loss and gradients. Ratios are of
times: below 1, the patched model is faster. With `--add` a full run can be made in pieces: what the
file has of other models and dtypes stays in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_flatten

import metile_mlx as metile
from benchmarks.architectures import NAMES, Size, build
from benchmarks.harness import Arm, Goal, Summary, WrongResult, geometric_mean, measure, ratio
from benchmarks.optional import prompt_cache_maker
from benchmarks.record import device_line, environment, print_table, verdict, write_json

MLX, OURS = "mlx", "metile"
DTYPES = {"f32": mx.float32, "f16": mx.float16, "bf16": mx.bfloat16}
PHASES = ("prefill", "decode", "step")
# The model that was promised not to be slower, and what two equal arms may differ by.
PROMISED, NOISE = "llama", 1.02
# Gradients, as a share of the largest of their array; the loss, a hundredth of it. On a CPU the
# models of FULL differ by up to 2e-5, 9e-3 and 0.1.
SHARES = {"f32": 1e-4, "f16": 0.03, "bf16": 0.3}


@dataclass(frozen=True)
class Plan:
    """What is measured: `tokens` of a prompt and a batch of `batch` for a step, `decoded` steps."""

    size: Size
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    tokens: int
    batch: int
    decoded: int
    rounds: int

    def cases(self) -> list[tuple[str, str]]:
        """Names and dtypes; a mixture of experts runs in f32 only where MLX is on a CPU."""
        is_gpu = mx.default_device().type == mx.DeviceType.gpu
        return [
            (name, dtype)
            for name in self.names
            for dtype in self.dtypes
            if name != "mixtral" or dtype == "f32" or is_gpu
        ]


QUICK = Plan(Size(512, 256, 512, 2, 4, 2), ("llama", "gemma"), ("f32", "f16"), 32, 2, 16, 9)
FULL = Plan(Size(1024, 256, 768, 4, 4, 2), NAMES, tuple(DTYPES), 64, 2, 32, 9)


@dataclass(frozen=True)
class Measured:
    """One model in one dtype: seconds of each arm by phase, and the report of the patch.

    Attributes:
        patch: the report, as `PatchReport.to_dict` has it.
        source: when it was measured, and the revision.
    """

    name: str
    dtype: str
    patch: dict[str, Any]
    times: dict[str, dict[str, Summary]]
    source: tuple[str, str] = ("", "")

    @property
    def label(self) -> str:
        """For tables."""
        return f"{self.name} {self.dtype}"

    def ratios(self) -> dict[str, float]:
        """Median time of the patched model over MLX's, by phase."""
        return {phase: ratio(times, OURS, MLX) for phase, times in self.times.items()}

    def least_ratios(self) -> dict[str, float]:
        """The same of the least times, which other work on the machine moves less."""
        return {phase: times[OURS].least / times[MLX].least for phase, times in self.times.items()}

    def to_dict(self) -> dict[str, Any]:
        """For the JSON file."""
        date, revision = self.source
        return {
            "model": self.name,
            "dtype": self.dtype,
            "date": date,
            "revision": revision,
            "checked": "tokens of the prompt and of each decoded step, loss and gradients",
            "patch": self.patch,
            "phases": {
                phase: {
                    "ratio": self.ratios()[phase],
                    "ratio_of_least": self.least_ratios()[phase],
                    "arms": {name: summary.to_dict() for name, summary in times.items()},
                }
                for phase, times in self.times.items()
            },
        }

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Measured:
        """What `to_dict` gave."""
        times = {
            phase: {name: Summary.from_dict(arm) for name, arm in each["arms"].items()}
            for phase, each in given["phases"].items()
        }
        source = (given["date"], given["revision"])
        return cls(given["model"], given["dtype"], given["patch"], times, source)


def run_case(name: str, dtype: str, plan: Plan) -> Measured:
    """Times of each phase.

    Raises:
        WrongResult: nothing was swapped, or the patched model says something else.
    """
    models = {arm: build(name, plan.size, DTYPES[dtype]) for arm in (MLX, OURS)}
    key = mx.random.key(1)
    tokens = mx.random.randint(0, plan.size.vocab_size, (plan.batch, plan.tokens), key=key)
    prompt = tokens[:1]
    report = metile.patch(models[OURS], sample=prompt)
    if not report or not all(item.is_met for item in report.agreement):
        raise WrongResult(f"{name} {dtype}: {report}")
    tolerance = max(item.tolerance for item in report.agreement)
    forced, expected = decode(models[MLX], prefilled(models[MLX], prompt), prompt, plan.decoded)
    loss, slopes = compiled_step(models[MLX])(tokens)
    checks: dict[str, Callable[[Any], str | None]] = {
        "prefill": partial(other_tokens, expected=models[MLX](prompt), tolerance=tolerance),
        "decode": lambda made: other_tokens(made[1], expected, tolerance),
        "step": partial(other_step, expected=(loss, slopes), share=SHARES[dtype]),
    }
    arms = {
        phase: [arm(phase, which, model, plan, tokens, forced) for which, model in models.items()]
        for phase in PHASES
    }
    times = {
        phase: measure(arms[phase], lambda _, made, p=phase: checks[p](made), plan.rounds)
        for phase in PHASES
    }
    return Measured(name, dtype, report.to_dict(), times)


def arm(
    phase: str, name: str, model: nn.Module, plan: Plan, tokens: mx.array, forced: mx.array
) -> Arm:
    """One model in one phase."""
    prompt = tokens[:1]
    if phase == "prefill":
        return Arm(name, lambda: evaluated(model(prompt)))
    if phase == "decode":
        return Arm(
            name,
            lambda cache: decode(model, cache, prompt, plan.decoded, forced),
            plan.decoded,
            lambda: prefilled(model, prompt),
        )
    step = compiled_step(model)
    return Arm(name, lambda: evaluated(step(tokens)))


def evaluated(made: Any) -> Any:
    mx.eval(made)
    return made


def prefilled(model: nn.Module, prompt: mx.array) -> Any:
    """A cache that holds the prompt but its last token."""
    cache = prompt_cache_maker()(model)
    mx.eval(model(prompt[:, :-1], cache=cache))
    return cache


def decode(
    model: nn.Module, cache: Any, prompt: mx.array, count: int, forced: mx.array | None = None
) -> tuple[mx.array, mx.array]:
    """Tokens one by one, each found before the next: (count,) and their (count, vocabulary) logits.

    With `forced`, each step is given a token of it rather than the one that was found.
    """
    given, tokens, logits = prompt[:, -1:], [], []
    for index in range(count):
        last = model(given, cache=cache)[:, -1]
        token = mx.argmax(last, axis=-1)
        mx.eval(token)
        given = token[:, None] if forced is None else forced[index : index + 1][:, None]
        tokens.append(token)
        logits.append(last)
    return mx.concatenate(tokens), mx.concatenate(logits)


def compiled_step(model: nn.Module) -> Callable[[mx.array], Any]:
    """Tokens -> loss and gradients, as one function that MLX compiled."""

    def loss_of(model: nn.Module, tokens: mx.array) -> mx.array:
        logits = model(tokens[:, :-1]).astype(mx.float32)
        return nn.losses.cross_entropy(logits, tokens[:, 1:], reduction="mean")

    value_and_grad = nn.value_and_grad(model, loss_of)
    state = [model.state]
    return mx.compile(lambda tokens: value_and_grad(model, tokens), inputs=state, outputs=state)


def other_tokens(made: mx.array, expected: mx.array, tolerance: float) -> str | None:
    """What is wrong with logits: rows whose clear first is another one."""
    rows, found = (x.reshape(-1, x.shape[-1]).astype(mx.float32) for x in (expected, made))
    two = mx.topk(rows, 2, axis=-1)
    lead = mx.abs(two[:, 0] - two[:, 1]) / mx.max(mx.abs(rows), axis=-1)
    other = (mx.argmax(rows, axis=-1) != mx.argmax(found, axis=-1)) & (lead > tolerance)
    count = int(mx.sum(other).item())
    return f"{count} of {rows.shape[0]} tokens differ" if count else None


def other_step(made: Any, expected: Any, share: float) -> str | None:
    """What is wrong with a loss and its gradients."""
    (loss, gradients), (wanted, slopes) = made, expected
    if abs(loss.item() - wanted.item()) > share / 100 * abs(wanted.item()):
        return f"the loss is {loss.item()}, and {wanted.item()} in MLX"
    ours = dict(tree_flatten(gradients))
    for path, slope in tree_flatten(slopes):
        apart = mx.max(mx.abs(ours[path] - slope).astype(mx.float32)).item()
        if not apart <= share * mx.max(mx.abs(slope).astype(mx.float32)).item():
            return f"the gradient of {path} differs by {apart}"
    return None


def goals(measured: Sequence[Measured]) -> list[Goal]:
    """A patched small Llama is not slower than MLX's, in any phase."""
    return [
        Goal(f"{item.label} {phase}: least / least of mlx", found, NOISE, "")
        for item in measured
        if item.name == PROMISED
        for phase, found in item.least_ratios().items()
    ]


def table(measured: Sequence[Measured]) -> None:
    """Milliseconds of both arms and their ratio, by phase."""
    head = ["model", "swaps"]
    head += [f"{phase} {text}" for phase in PHASES for text in ("mlx", "ours", "ratio", "of least")]
    lines = []
    for item in measured:
        cells = [str(len(item.patch["swaps"]))]
        for phase in PHASES:
            times = item.times[phase]
            cells += [f"{times[which].median * 1e3:.2f}" for which in (MLX, OURS)]
            cells += [f"{found[phase]:.3f}" for found in (item.ratios(), item.least_ratios())]
        lines.append([item.label, *cells])
    means = ["geometric mean", ""]
    for phase in PHASES:
        both = zip(*((i.ratios()[phase], i.least_ratios()[phase]) for i in measured), strict=True)
        means += ["", "", *(f"{geometric_mean(each):.3f}" for each in both)]
    lines.append(means)
    print_table("median times, ms; ours over MLX's, of medians and of the least", head, lines)


def content(found: dict[str, Any], measured: Sequence[Measured], quick: bool) -> dict[str, Any]:
    """What the JSON file holds."""
    return {
        "benchmark": "model",
        "quick": quick,
        "environment": found,
        "cases": [item.to_dict() for item in measured],
        "goals": [goal.to_dict() for goal in goals(measured)],
    }


def with_earlier(path: Path, measured: Sequence[Measured]) -> list[Measured]:
    """What a file has of other models and dtypes, and these, in the order of the tables."""
    every = {(item.name, item.dtype): item for item in measured}
    if path.exists():
        for given in json.loads(path.read_text(encoding="utf-8"))["cases"]:
            earlier = Measured.from_dict(given)
            every.setdefault((earlier.name, earlier.dtype), earlier)
    dtypes = list(DTYPES)
    return sorted(every.values(), key=lambda i: (NAMES.index(i.name), dtypes.index(i.dtype)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.model", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two models, small and few rounds")
    parser.add_argument("--only", metavar="NAMES", help=f"models, of {', '.join(NAMES)}")
    parser.add_argument("--dtypes", metavar="NAMES", help=f"of {', '.join(DTYPES)}")
    parser.add_argument("--output-json", type=Path, help="write the results to this file")
    parser.add_argument("--add", action="store_true", help="and keep what else the file has")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for a missed target")
    options = parser.parse_args(argv)
    if options.add and options.output_json is None:
        parser.error("--add: expected --output-json FILE too, the file that it adds to")
    options.plan = QUICK if options.quick else FULL
    for option, known in (("only", NAMES), ("dtypes", tuple(DTYPES))):
        given = getattr(options, option)
        wanted = None if given is None else tuple(given.split(","))
        unknown = [name for name in wanted or () if name not in known]
        if unknown:
            parser.error(f"--{option} {unknown[0]}: expected some of {', '.join(known)}")
        if wanted:
            field = "names" if option == "only" else option
            options.plan = replace(options.plan, **{field: wanted})
    return options


def main(argv: Sequence[str]) -> int:
    """Measure, print, write; 1: a failure or, with --strict, a missed target."""
    options = parse(argv)
    found = environment()
    print(device_line(found), flush=True)
    source = (str(found.get("date", "")), str(found.get("revision", "")))
    measured: list[Measured] = []
    try:
        for name, dtype in options.plan.cases():
            measured.append(replace(run_case(name, dtype, options.plan), source=source))
        if options.add:
            measured = with_earlier(options.output_json, measured)
        table(measured)
        if options.output_json is not None:
            write_json(options.output_json, content(found, measured, options.quick))
            print(f"results: {options.output_json}")
    except (WrongResult, metile.MetileError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return verdict(goals(measured), options.strict)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
