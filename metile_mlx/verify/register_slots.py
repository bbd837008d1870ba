"""Which register slot of a planned tile a value of the per-thread program stands for."""

from __future__ import annotations

from metile_mlx.ir import metal, planned, tile
from metile_mlx.ir.arith import element
from metile_mlx.ir.core import Block, Func, Value, definitions
from metile_mlx.ir.loops import For, ThreadFor
from metile_mlx.ir.matrix import Dot
from metile_mlx.ir.pipeline import SoftwarePipeline
from metile_mlx.verify.conversions import images
from metile_mlx.verify.thread_values import thread_values

# Each register slot of what these make has an op, or an argument, of its own.
_OWN = (tile.Load, planned.ScratchLoad, Dot, For, SoftwarePipeline)
# These may be simplified where an operand is the same in several slots.
_IN_ORDER = (tile.Unary, tile.Bitcast, tile.Fma, tile.Cast)


class RegisterSlots:
    """What is known of slots: the values of a tile are made in the order of its registers."""

    def __init__(self, func: Func, before: Func) -> None:
        self.values = thread_values(func)
        self.threads = func.threads
        self.tiles = definitions(before)
        self.order: dict[Value, int] = {param: at for at, param in enumerate(func.params)}
        self._number(func.body)
        self.known: dict[Value, dict[int, Value]] = {}

    def _number(self, block: Block) -> None:
        """Values in the order in which they are made; results of blocks behind what is in them."""
        for value in block.args:
            self.order[value] = len(self.order)
        for item in block.ops:
            for inner in item.blocks():
                self._number(inner)
            for value in item.results:
                self.order[value] = len(self.order)

    def fault(self, of: Value, register: int, value: Value) -> str:
        """Why `value` can't be this register of a tile, or nothing."""
        known = self.known.setdefault(of, {})
        if register in known:
            if known[register] is value:
                return ""
            return f"is {value!r}, but register {register} of {of!r} was {known[register]!r}"
        known[register] = value
        if self.is_number(value):
            # What is never in bounds is loaded as a constant, for example.
            return ""
        place = self.order[value]
        for other, there in known.items():
            if other == register or not self.is_ordered(of) or self.is_number(there):
                continue
            distance = (self.order[there] - place) * (1 if other > register else -1)
            if distance < 0 or (distance == 0 and self.is_own(of)):
                return (
                    f"is {value!r}, which register {register} of {of!r} can't be: register {other} "
                    f"is {there!r}"
                )
        return self.elsewhere(of, register, value)

    def is_number(self, value: Value) -> bool:
        return isinstance(self.values.made_by.get(value), metal.Constant)

    def is_own(self, of: Value) -> bool:
        """Whether each register of a tile has a value of its own."""
        item = self.tiles.get(of)
        if isinstance(item, tile.Bitcast):
            return self.is_own(item.src)
        # What no op makes, a loop carries.
        return item is None or isinstance(item, _OWN)

    def is_ordered(self, of: Value) -> bool:
        item = self.tiles.get(of)
        is_float = isinstance(item, tile.Binary) and element(item.result).is_float
        return self.is_own(of) or is_float or isinstance(item, _IN_ORDER)

    def elsewhere(self, of: Value, register: int, value: Value) -> str:
        """Whether it is made in another line than its tile, or loads other elements."""
        wanted, found = self.tiles.get(of), self.values.made_by.get(value)
        if wanted is None and isinstance(found, ThreadFor):
            # The last phase of a pipeline binds what the loop of the steps before it leaves.
            return ""
        if (wanted is None) != (found is None):
            return f"is {value!r}, which is not made as {of!r} is"
        if self.is_own(of) and wanted is not None and found is not None:
            if wanted.loc != found.loc:
                return f"is {value!r}, which is made in another place than {of!r}"
            if isinstance(wanted, tile.Bitcast) and isinstance(found, metal.Bitcast):
                return self.elsewhere(wanted.src, register, found.src)
        if isinstance(wanted, planned.ScratchLoad) and isinstance(found, metal.ThreadgroupLoad):
            at = self.values.evaluate(found.index)
            table = images(wanted.slots).reshape(-1, self.threads)[register] - wanted.skip
            if at is not None and (at != table).any():
                return f"is {value!r}, which loads other elements than register {register}"
        return ""
