"""Whether a model could be faster on integers at all on this machine: a roofline bound."""

from dataclasses import dataclass

from foldmark.proof.kernels import Kernels
from foldmark.runtimes.machine import Roofs

__all__ = ["SpeedBound", "speed_bound"]

_FROM_CACHE = 16 << 20  # weights below this stay in the cache from run to run


@dataclass(frozen=True)
class SpeedBound:
    """The best that integers could do for this shape.

    Attributes:
        product_share: part of the float model's time in products with a weight, 0 to 1.
        memory_bound: part of that time in products limited by reading their weights.
        speedup: float time / least possible time, everything but those products unchanged.
        roofs: the measured speeds it rests on.
    """

    product_share: float
    memory_bound: float
    speedup: float
    roofs: Roofs


def speed_bound(float_kernels: Kernels, roofs: Roofs) -> SpeedBound:
    """Bound the gain of int8 from what the float model spends its time on.

    A product of m multiply-accumulates with w weights takes at least
    max(m / integer speed, w bytes / reading speed) on integers, the second only where the
    model's weights are too large to stay in the cache.
    """
    weighted = [each for each in float_kernels.products if each.weight_values]
    total = float_kernels.seconds
    read_again = sum(each.weight_values for each in weighted) > _FROM_CACHE
    least, inside, bound_by_memory = 0.0, 0.0, 0.0
    for product in weighted:
        compute = product.macs / roofs.integer_macs
        memory = product.weight_values / roofs.bytes_read if read_again else 0.0
        least += min(product.seconds, max(compute, memory))
        inside += product.seconds
        bound_by_memory += product.seconds if memory > compute else 0.0
    return SpeedBound(
        inside / total if total else 0.0,
        bound_by_memory / inside if inside else 0.0,
        total / (total - inside + least) if total else 1.0,
        roofs,
    )
