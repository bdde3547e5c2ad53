"""One decorator for every hot loop: compiled on first use, kept on disk, free of the GIL.

The loops are small on purpose. Each compiles in a fraction of a second, so the first call of a
fresh installation never waits long, and each is plain enough for the compiler to vectorise:
slices instead of computed indices, integers of one width, no branch on the data. Larger work is
composed of them piece by piece, with the pieces small enough to stay in the cache.

Nothing here may change a bit: no relaxed floating-point mode is ever asked for, so products and
sums are never contracted, divisions never become reciprocals, subnormals are never flushed. The one
product and sum that may be, in `lanes`, is part of a proof in `quotients` that holds either way.
"""

from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.core.typing import signature
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["compiled", "fused", "inlined", "is_started", "read_only"]

P = ParamSpec("P")
R = TypeVar("R")
Number = TypeVar("Number", bound=np.generic)

_OPTIONS: Final[dict[str, Any]] = {"nogil": True, "error_model": "numpy"}
_LOOPS: Final[list[Any]] = []


class _Kept(FunctionCache):
    """Machine code on disk, loaded without what only compiling needs.

    numba imports all that its compiler knows before it looks whether the code is there: a hundred
    modules, and SciPy where it is installed, more than half of the time that a short command takes.
    Code that is there needs numba's counting of references and no more; where it is not there the
    compiler imports the rest by itself.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for one set of types, None where none is kept."""
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a loop over arrays when it is first called with each set of dtypes.

    The machine code is kept beside the source, or in the user's cache folder where that is not
    writable; where neither is, each process compiles for itself.
    """
    try:
        kept = njit(cache=True, **_OPTIONS)(function)
        kept._cache = _Kept(function)  # the same files, read in another way
    except RuntimeError:
        kept = njit(**_OPTIONS)(function)
    _LOOPS.append(kept)
    loop: Callable[P, R] = kept
    return loop


def read_only(array: NDArray[Number]) -> NDArray[Number]:
    """Return a view that nobody writes to, as loops are given what they only read.

    Arrays that may be written to have a type of their own, for which a loop would be compiled once
    more: weights mapped from a file and weights made in memory would each make someone wait.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def is_started() -> bool:
    """Say whether some loop is loaded: the first takes far longer than the next ones."""
    return any(loop.overloads for loop in _LOOPS)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function part of every loop that calls it: no call to pay for, nothing of its own."""
    part: Callable[P, R] = njit(inline="always", **_OPTIONS)(function)
    return part


@intrinsic
def fused(_typing: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x * y + z rounded once, for use in compiled loops; all three of one float type."""

    def code(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return (signature(x, x, y, z), code) if x == y == z else None
