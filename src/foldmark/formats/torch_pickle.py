"""PyTorch's pickles, followed step by step: nothing is imported, called or built but records.

A pickle is a program for a machine with a stack and a memo. This machine knows the steps that
PyTorch writes; of the names that a pickle may ask for only those in `torch_names`. So a tensor
comes out as where its items lie, and whatever else is asked for is refused by its name.
Source: pickle protocol 2 as pickletools describes it.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import Any

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.torch_names import NAMES, Misused, Named, Other, Table, storage_of

__all__ = ["interpret"]

# So many steps make some 70,000 tensors; more would take long and much memory.
_MOST_STEPS = 1 << 21
# what Python 2 called the modules
_OLD_MODULES = {"__builtin__": "builtins"}


class _Machine:
    """The stack, the marks in it and the memo."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def above_mark(self) -> list[object]:
        """Take everything above the last mark off the stack."""
        start = self.marks.pop()
        taken = self.stack[start:]
        del self.stack[start:]
        return taken

    def top(self) -> object:
        return self.stack[-1]

    def take(self, count: int) -> list[object]:
        if len(self.stack) < count:
            raise IndexError("the stack is empty")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken


def _push(machine: _Machine, argument: object) -> None:
    machine.stack.append(argument)


def _global(machine: _Machine, argument: str) -> None:
    module, _, name = argument.partition(" ")
    path = f"{_OLD_MODULES.get(module, module)}.{name}"
    if path not in NAMES:
        raise HostileFile(
            "its pickle asks for more than the weights-only names of PyTorch",
            where=machine.where,
            got=path[:120],
            todo="save the state dict alone, or as safetensors",
        )
    machine.stack.append(NAMES[path])


def _call(machine: _Machine) -> None:
    function, arguments = machine.take(2)
    name = function.name if isinstance(function, Named) else type(function).__name__
    make = function.make if isinstance(function, Named) else None
    if make is None or not isinstance(arguments, tuple):
        raise HostileFile("its pickle calls what is no function", where=machine.where, got=name)
    try:
        machine.stack.append(make(arguments))
    except Misused as fault:
        raise HostileFile(
            f"its pickle calls {name} with arguments that it does not take", where=machine.where
        ) from fault
    except NotSupported as fault:
        raise NotSupported(fault.what, where=machine.where) from fault


def _build(machine: _Machine) -> None:
    """Drop the attributes of a dictionary (its _metadata); nothing else has any."""
    built, _ = machine.take(2)
    if not isinstance(built, Table):
        raise HostileFile(
            "its pickle sets attributes", where=machine.where, got=type(built).__name__
        )
    machine.stack.append(built)


def _persistent(machine: _Machine) -> None:
    (stated,) = machine.take(1)
    try:
        machine.stack.append(storage_of(stated))
    except Misused as fault:
        raise HostileFile(
            "its pickle names a storage in no known form", where=machine.where
        ) from fault


def _append(machine: _Machine, items: list[object]) -> None:
    holder = machine.top()
    if not isinstance(holder, list):
        raise TypeError("items for what is no list")
    holder.extend(items)


def _set(machine: _Machine, items: list[object]) -> None:
    holder = machine.top()
    if not isinstance(holder, Table) or len(items) % 2:
        raise TypeError("pairs for what is no dictionary")
    holder.pairs.extend(zip(items[::2], items[1::2], strict=True))


def _recall(machine: _Machine, argument: Any) -> None:
    machine.stack.append(machine.memo[argument])


def _keep(machine: _Machine, argument: Any) -> None:
    machine.memo[argument] = machine.top()


def _tuple(count: int) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(tuple(machine.take(count)))


# the steps that come with an argument, and the others
_TAKING: Mapping[str, Callable[[_Machine, Any], None]] = {
    "BININT": _push,
    "BININT1": _push,
    "BININT2": _push,
    "LONG1": _push,
    "BINFLOAT": _push,
    "BINUNICODE": _push,
    "SHORT_BINSTRING": _push,
    "BINPUT": _keep,
    "LONG_BINPUT": _keep,
    "BINGET": _recall,
    "LONG_BINGET": _recall,
    "GLOBAL": _global,
}
_STEPS: Mapping[str, Callable[[_Machine], None]] = {
    "NONE": lambda machine: machine.stack.append(None),
    "NEWTRUE": lambda machine: machine.stack.append(True),
    "NEWFALSE": lambda machine: machine.stack.append(False),
    "EMPTY_TUPLE": lambda machine: machine.stack.append(()),
    "EMPTY_LIST": lambda machine: machine.stack.append([]),
    "EMPTY_DICT": lambda machine: machine.stack.append(Table()),
    "EMPTY_SET": lambda machine: machine.stack.append(Other()),
    "MARK": lambda machine: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine: machine.stack.append(tuple(machine.above_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": lambda machine: _append(machine, machine.take(1)),
    "APPENDS": lambda machine: _append(machine, machine.above_mark()),
    "SETITEM": lambda machine: _set(machine, machine.take(2)),
    "SETITEMS": lambda machine: _set(machine, machine.above_mark()),
    "REDUCE": _call,
    "NEWOBJ": _call,
    "BUILD": _build,
    "BINPERSID": _persistent,
}
_FRAME = ("PROTO", "STOP")


def interpret(pickled: bytes, where: str) -> object:
    """Follow a pickle to its end and return what it makes: tables, lists, tensors, plain values.

    Args:
        pickled: the bytes.
        where: what an error names.

    Raises:
        HostileFile: a pickle that is broken or endless, or asks for a name outside the table.
        NotSupported: a kind of tensor, or a step of the machine, that is not read.
    """
    machine = _Machine(where)
    try:
        for count, (step, argument, _) in enumerate(pickletools.genops(pickled)):
            if count >= _MOST_STEPS:
                raise HostileFile(
                    "its pickle is too long", where=where, expected=f"at most {_MOST_STEPS} steps"
                )
            if step.name in _STEPS:
                _STEPS[step.name](machine)
            elif step.name in _TAKING:
                _TAKING[step.name](machine, argument)
            elif step.name not in _FRAME:
                raise NotSupported(
                    f"not supported: the pickle step {step.name}, which PyTorch does not write",
                    where=where,
                )
        (made,) = machine.take(1)
    except (ValueError, IndexError, KeyError, TypeError) as fault:
        raise HostileFile(
            "its pickle is broken", where=where, got=str(fault)[:120] or type(fault).__name__
        ) from fault
    return made
