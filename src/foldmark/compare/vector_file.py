"""Files of recorded vectors: JSON, {"vectors": [{"id", "tool", "input", "codes", ...}, ...]}.

Numbers are exact decimals; NaN and the infinities are strings. `input_dtype` says what the input
is cast to before use; integers need none.
"""

import json
import re
from math import isfinite
from pathlib import Path
from typing import Any, Final

from foldmark.compare.vectors import Nested, Vector, flat
from foldmark.errors import DataMismatch, FileUnreadable, FormatNotRecognised
from foldmark.exact.catalog import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from foldmark.exact.number import FloatFormat

__all__ = ["read_vectors"]

_INTEGERS = {"ints", "int32", "int8 accumulators"}
_DTYPES: Final[dict[str, FloatFormat]] = {
    **{f.name: f for f in (FLOAT64, FLOAT32, FLOAT16, BFLOAT16)},
    **{"f64": FLOAT64, "f32": FLOAT32, "f16": FLOAT16, "bf16": BFLOAT16},
    **dict.fromkeys(_INTEGERS, FLOAT64),
}
_MOST_BITS: Final = 1000
"""Whole numbers beyond are no float64."""
_RANGES = re.compile(r"input_low=(\[.*\]) input_high=(\[.*\]) levels=(\d+)")


def read_vectors(path: Path) -> list[Vector]:
    """Return the vectors of a file in their order.

    Raises FileUnreadable, FormatNotRecognised for anything but such a file, and DataMismatch naming
    the first vector that lacks a part or has one of the wrong kind.
    """
    if path.is_dir():
        raise FileUnreadable("this is a directory", where=str(path), expected="a JSON file")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise FileUnreadable(error.strerror or "unreadable", where=str(path)) from None
    except UnicodeDecodeError:
        raise FormatNotRecognised("not text", where=str(path), expected="JSON") from None
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise FormatNotRecognised("not JSON", where=str(path)) from None
    if not isinstance(document, dict) or not isinstance(document.get("vectors"), list):
        raise FormatNotRecognised(
            "no list of vectors", where=str(path), expected='{"vectors": [...]}'
        )
    return [_vector(raw, index) for index, raw in enumerate(document["vectors"])]


def _vector(raw: Any, index: int) -> Vector:
    where = f"vector {index}"
    if not isinstance(raw, dict) or not isinstance(raw.get("id"), str) or "input" not in raw:
        raise DataMismatch("not a vector", where=where, expected="an id and an input")
    where = f"vector {index}, {raw['id']!r}"
    dtype = raw.get("input_dtype", "float32")
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise DataMismatch("unknown dtype", where=where, got=str(dtype), expected="float32, ...")
    note = _text(raw.get("note"))
    values = _nested(raw["input"], "input", where)
    codes = _answer(raw, "codes", where, whole=True)
    scale, zero_point = (_answer(raw, part, where) for part in ("scale", "zero_point"))
    if ranges := _RANGES.match(note):
        # Ranges have no codes: their ends are compared as scales, the number of levels as a code.
        codes, scale = [int(ranges[3])], json.loads(ranges[1]) + json.loads(ranges[2])
    if codes is None and scale is None and zero_point is None:
        raise DataMismatch("no answer", where=where, expected="codes, a scale or a zero point")
    return Vector(
        id=raw["id"],
        tool=_text(raw.get("tool")),
        version=_text(raw.get("version")),
        call=_text(raw.get("call")),
        data=_DTYPES[dtype],
        values=values,
        codes=codes,
        scale=scale,
        scale_dtype=_text(raw.get("scale_dtype")),
        zero_point=zero_point,
        note=note,
    )


def _answer(raw: dict[str, Any], part: str, where: str, *, whole: bool = False) -> Nested:
    """Return a part of an answer, None where it is not given; `whole` numbers are codes."""
    value = raw.get(part)
    if value is None:
        return None
    found = _nested(value, part, where)
    for number in flat(found) if whole else ():
        if not isfinite(number) or number != int(number):
            raise DataMismatch(f"{part} are whole", where=where, got=str(number))
    return found


def _nested(value: Any, part: str, where: str) -> Nested:
    """Return numbers as they are and the strings of special floats as floats."""
    if isinstance(value, list):
        return [_nested(inner, part, where) for inner in value]
    if isinstance(value, float) or (type(value) is int and value.bit_length() <= _MOST_BITS):
        return value
    if value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    raise DataMismatch("not a number", where=f"{where}, {part}", got=str(value)[:40])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
