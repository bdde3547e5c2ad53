"""What quantizers append to the names of the tensors they quantize."""

import re
from collections.abc import Iterator

__all__ = ["without_suffixes"]

_SUFFIX = re.compile(
    r"(_quantized|_quant|_codes|_q|_Q|_int8|_uint8|_Q[248](G\d+)?|_QuantizeLinear_(In|Out)put|"
    r"_DequantizeLinear_Output|_DequantizeLinear|_QuantizeLinear|_dequantized|_float|"
    r"_scales?|_zero_points?|_f|_cast|_transposed|_merged_0_value|_relu|_clip|"
    r"\.quantized|\.weight_quantized)$"
)


def without_suffixes(name: str) -> Iterator[str]:
    """Yield a name as it is, then with what quantizers append taken off, step by step."""
    last, shorter = "", name
    while shorter and shorter != last:
        last = shorter
        yield last
        shorter = _SUFFIX.sub("", last)
