"""A weight of integers or small floats with its scale beside it, nothing packed.

    X.weight        int8, uint8 or float8 (out, in)
    X.weight_scale  one, (out,), (out, 1), (out, groups) or tiles
    X.weight_zero_point  of the scale's shape, where the codes are not symmetric

compressed-tensors calls it int-quantized, float-quantized or naive; DeepSeek's float8 tiles
call the scale weight_scale_inv. value = scale * (code - zero_point)
"""

from dataclasses import dataclass

from foldmark.formats.entry import Entry
from foldmark.formats.scaled_blocks import ScaledBlocks
from foldmark.formats.schemes.shelf import Shelf, block_of, demand, parts, spans
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Layout

__all__ = ["Names", "claim", "scaled_tensor"]


@dataclass(frozen=True)
class Names:
    """What a tool calls the arrays of one weight, behind the module's name.

    Attributes:
        codes: suffix of the codes.
        scale: suffix of the scale.
        zero_point: suffix of the zero point, "" when there is none.
        packing: the name of the form.
    """

    codes: str
    scale: str
    zero_point: str = ""
    packing: str = "plain codes"


# Those that need no more than a look at the names. The first that fits takes the arrays.
_KNOWN = (
    Names(".weight", ".weight_scale", ".weight_zero_point", "compressed-tensors, not packed"),
    Names(".weight", ".weight_scale_inv", "", "float8 tiles"),
    Names(".qweight", ".scale", ".zero_point"),
    Names(".qweight", ".weight_scale", ".weight_zero_point"),
    Names(".weight_q", ".scale", ".zero_point"),
    Names("codes", "scale", "zero_point"),
    Names("", "_scale", "_zero_point"),
)
_CODE_FORMATS = ("int8", "uint8", "int16", "uint16", "float8_e4m3fn", "float8_e5m2")
_SCALE_FORMATS = ("float32", "float16", "bfloat16", "float64")


def claim(shelf: Shelf) -> list[StoredTensor]:
    """Take every weight whose scale stands beside it."""
    found = []
    for names in _KNOWN:
        for module in list(shelf.modules(names.codes)):
            codes, scale = shelf.get(module + names.codes), shelf.get(module + names.scale)
            if codes is None or scale is None or codes.number_format not in _CODE_FORMATS:
                continue
            if scale.number_format not in _SCALE_FORMATS or codes is scale:
                continue
            zero_point = shelf.get(module + names.zero_point) if names.zero_point else None
            found.append(
                scaled_tensor(_weight_name(module, names), codes, scale, zero_point, names)
            )
            shelf.take(*(e.name for e in (codes, scale, zero_point) if e is not None))
    return found


def _weight_name(module: str, names: Names) -> str:
    if names.codes.startswith(".") and not module.endswith("weight"):
        return f"{module}.weight"
    return module or names.codes


def scaled_tensor(
    name: str, codes: Entry, scale: Entry, zero_point: Entry | None, names: Names
) -> StoredTensor:
    """Describe codes with a scale, and a zero point or none, each an array of its own.

    Raises:
        HostileFile: when the shapes contradict each other.
    """
    block = block_of(codes.shape, scale)
    if zero_point is not None:
        demand(zero_point, zero_point.elements == scale.elements, f"{scale.elements} items")
    blocks = ScaledBlocks(codes, scale, zero_point, codes.shape, block)
    layout = Layout(
        codes.number_format,
        block,
        scale.number_format,
        "none" if zero_point is None else "stored",
        names.packing,
    )
    return blocks.tensor(
        name,
        layout,
        spans(codes, scale, zero_point),
        parts(codes=codes, scales=scale, zero_points=zero_point),
    )
