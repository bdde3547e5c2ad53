"""What quantized numbers weigh: the bits of the codes and of the scales beside them."""

from fractions import Fraction

__all__ = ["bits_per_value", "cache_bytes"]


def bits_per_value(count: int, block_size: int, code_bits: int, scale_bits: int) -> Fraction:
    """Return (count * code_bits + blocks * scale_bits) / count, a short last block counted whole.

    count       values, at least 1
    block_size  values that share a scale
    """
    blocks = -(-count // block_size)
    return Fraction(count * code_bits + blocks * scale_bits, count)


def cache_bytes(tokens: int, channels: int, code_bits: int, scale_bits: int) -> int:
    """Return the bytes of one head's keys and values, rounded up.

    Keys have one scale a channel, values one scale a token:
    2 * tokens * channels * code_bits + (channels + tokens) * scale_bits bits.
    """
    bits = 2 * tokens * channels * code_bits + (channels + tokens) * scale_bits
    return -(-bits // 8)
