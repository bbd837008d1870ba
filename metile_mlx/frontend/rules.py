"""Which functions a kernel may call: each public stub with the rule that translates it.

A stub carries type and documentation; outside a kernel its body raises. Below it stands its rule: a
function that takes the `Build` first and then the stub's evaluated arguments by name. A called name
is looked up by the identity of the stub, so any alias of it works.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from metile_mlx.errors import CompileError

RuleFunction = TypeVar("RuleFunction", bound=Callable[..., object])


@dataclass(frozen=True)
class Rule:
    """How one stub translates; `signature` is the stub's."""

    name: str
    translate: Callable[..., object]
    signature: inspect.Signature


RULES: dict[object, Rule] = {}
# On constants alone these are ordinary functions, in a kernel as outside of one.
HOST: set[object] = set()


def rule(
    stub: Callable[..., object], name: str | None = None
) -> Callable[[RuleFunction], RuleFunction]:
    """Decorator that registers the rule of a stub; messages call it `name`, or as the stub."""

    def register(translate: RuleFunction) -> RuleFunction:
        RULES[stub] = Rule(name or stub.__name__, translate, inspect.signature(stub))
        return translate

    return register


def host(stub: RuleFunction) -> RuleFunction:
    """Decorator for a stub whose own body is right when every argument is a Python constant."""
    HOST.add(stub)
    return stub


def outside(name: str) -> CompileError:
    """The error of a stub that plain Python has called."""
    return CompileError(
        f"metile.{name} was called outside a kernel",
        hint="call it inside a function decorated with @metile.kernel",
    )
