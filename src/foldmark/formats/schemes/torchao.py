"""torchao's tensors as its safetensors support saves them.

    M._weight_qdata       int8 or float8 (out, in); int4 and the like stand in int8
    M._weight_scale       float, one a block
    M._weight_zero_point  int8, one a block, or absent
    metadata "M.weight"   JSON with _type and _data.target_dtype

Types that reorder or pack their codes for one kernel are refused by name.
"""

import json
import re
from dataclasses import replace

from foldmark.errors import HostileFile, NotSupported
from foldmark.formats.schemes.scaled import Names, scaled_tensor
from foldmark.formats.schemes.shelf import Shelf
from foldmark.formats.stored import StoredTensor

__all__ = ["claim"]

_READ = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor")
_FORMAT = re.compile(r"u?int[1-8]|float8_\w{4,12}")
_PARTS = Names("_qdata", "_scale", "_zero_point")


def claim(shelf: Shelf) -> list[StoredTensor]:
    """Take every weight whose metadata names a type of torchao's."""
    found = []
    for prefix in list(shelf.modules("_qdata")):
        module, _, attribute = prefix.rpartition("._")
        name = f"{module}.{attribute}"
        stated = shelf.metadata.get(name)
        codes, scale = shelf.get(prefix + _PARTS.codes), shelf.get(prefix + _PARTS.scale)
        if stated is None or codes is None or scale is None:
            continue
        kind, number_format = _type_of(stated, name, str(codes.source.path))
        if kind not in _READ:
            raise NotSupported(
                f"not supported: torchao {kind}", where=f"{codes.source.path}: tensor {name!r}"
            )
        zero_point = shelf.get(prefix + _PARTS.zero_point)
        names = replace(_PARTS, packing=f"torchao {kind}")
        tensor = scaled_tensor(name, codes, scale, zero_point, names)
        layout = replace(tensor.layout, number_format=number_format or tensor.layout.number_format)
        found.append(replace(tensor, layout=layout))
        shelf.take(codes.name, scale.name, prefix + _PARTS.zero_point)
    return found


def _type_of(stated: str, name: str, where: str) -> tuple[str, str]:
    """Return the type's name and its number format, "" when the codes' dtype tells it."""
    try:
        described = json.loads(stated)
        target = described.get("_data", {}).get("target_dtype") or {}
        kind, number_format = str(described["_type"]), str(target.get("_data", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        raise HostileFile(f"metadata of {name!r} is not torchao's JSON", where=where) from fault
    if number_format and not _FORMAT.fullmatch(number_format):
        got = number_format[:40].encode("unicode_escape").decode()
        raise HostileFile(
            f"metadata of {name!r} names no number format", where=where, got=got, expected="int4"
        )
    return kind, number_format
