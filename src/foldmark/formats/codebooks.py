"""Number formats whose codes are places in a short table of real numbers."""

from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

__all__ = ["CODEBOOKS"]


def _frozen(numbers: list[float]) -> NDArray[np.float32]:
    table = np.array(numbers, dtype=np.float32)
    table.flags.writeable = False
    return table


_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
# Source: ggml's non-linear 4-bit table; int8 numbers, denser around zero.
_IQ4 = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
# Source: QLoRA (Dettmers et al. 2023), appendix E; quantiles of a normal distribution.
_NF4 = [
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
]
# Source: bitsandbytes' 4-bit float, sign in the high bit, largest value 1.
_FP4 = [0.0, 0.0052083333, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25]

# number format -> real number of each code
CODEBOOKS: MappingProxyType[str, NDArray[np.float32]] = MappingProxyType(
    {
        "float4_e2m1fn": _frozen(_E2M1 + [-x for x in _E2M1]),
        "iq4_nl": _frozen([float(x) for x in _IQ4]),
        "nf4": _frozen(_NF4),
        "fp4_bnb": _frozen(_FP4 + [-x for x in _FP4]),
    }
)
