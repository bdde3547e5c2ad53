"""An ONNX file's bytes without its large weights, which are pointed at instead.

    ModelProto   ...  7: graph  ...  25: function  ...
    graph        ...  1: node  1: node ...  5: initializer  5: initializer ...
    node         ...  5: attribute  ...
    attribute    ...  5: tensor, a Constant's  6: graph, a branch's or a loop's  ...
    tensor       1: dims  2: data_type  8: name  9: raw_data   <- these bytes stay in the file
                 4: float_data  10: double_data   <- and these, which are no different

In the bytes returned such a tensor says that its data lies in another file, which is this one,
at the place where it is. What is left of a model of 90 MB is some kilobytes, and copying it costs
nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ["EVERYWHERE", "INITIALIZERS", "LARGE", "Buffer", "without_weights"]

_DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 2, 9, 13, 14
# a list of numbers whose bytes are those of raw data -> the element type that it is for
_LISTS: Final[Mapping[int, int]] = {4: 1, 10: 11}
Messages = Mapping[str, Mapping[int, str]]
"""Message -> number of a field that is a message -> which one."""

INITIALIZERS: Final[Messages] = {"model": {7: "graph"}, "graph": {5: "tensor"}}
# runtimes demand that a Constant's tensor be inside the model: these are for looking only
EVERYWHERE: Final[Messages] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph"},
}
_DEEPEST = 100  # messages within messages, as protobuf has it
LARGE: Final = 1 << 16  # bytes; smaller ones are shapes and biases, read again and again

Buffer = bytes | memoryview
Field = tuple[int, int, int, int]
"""(number, start of the field, start of its payload, end)."""


def without_weights(
    data: Buffer, location: str, least: int = LARGE, inside: Messages = INITIALIZERS
) -> bytes:
    """Return a ModelProto's bytes whose large weights name a place in the file `location`.

    data   the whole file
    least  bytes of a weight that is large
    inside where weights are looked for

    Bytes that are no ModelProto come back as they are, for the reader to judge.
    """
    try:
        rewriter = _Rewriter(data, location, least, inside)
        return rewriter.message("model", 0, len(data)) or bytes(data)
    except ValueError:
        return bytes(data)


@dataclass(frozen=True)
class _Rewriter:
    """What `without_weights` is asked for."""

    data: Buffer
    location: str
    least: int
    inside: Messages

    def message(self, kind: str, start: int, end: int, depth: int = 0) -> bytes:
        """Return a message whose large tensors lie elsewhere; nothing where it holds none."""
        if kind == "tensor":
            return self.tensor(start, end)
        if depth > _DEEPEST:
            return b""
        parts: list[Buffer] = []
        kept, seen = start, set()
        for number, first, payload, last in _fields(self.data, start, end):
            if kind == "attribute" and number in seen:
                raise ValueError("a field stands twice: the parser merges the two")
            seen.add(number)
            inner = self.inside[kind].get(number)
            if inner is not None and last - payload >= self.least:
                changed = self.message(inner, payload, last, depth + 1)
                if changed:
                    parts += [self.data[kept:first], _tagged(number, changed)]
                    kept = last
        return b"".join([*parts, self.data[kept:end]]) if parts else b""

    def tensor(self, start: int, end: int) -> bytes:
        """Return a TensorProto without its numbers; nothing where they are few or not in place."""
        parts, found, kind = [], {}, 0
        for number, first, payload, last in _fields(self.data, start, end):
            if number in (_EXTERNAL_DATA, _DATA_LOCATION) or number in found:
                return b""
            if number == _DATA_TYPE:
                kind, _ = _varint(self.data, payload)
            if number == _RAW_DATA or number in _LISTS:
                found[number] = payload, last - payload
            else:
                parts.append(bytes(self.data[first:last]))
        if len(found) != 1:
            return b""
        ((number, (offset, length)),) = found.items()
        if length < self.least or _LISTS.get(number, kind) != kind:
            return b""
        place = (("location", self.location), ("offset", str(offset)), ("length", str(length)))
        for key, value in place:
            entry = _tagged(1, key.encode()) + _tagged(2, value.encode())
            parts.append(_tagged(_EXTERNAL_DATA, entry))
        parts.append(bytes([_DATA_LOCATION << 3, 1]))
        return b"".join(parts)


def _fields(data: Buffer, place: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message; raises ValueError where they do not fill it exactly."""
    while place < end:
        start = place
        tag, place = _varint(data, place)
        match tag & 7:
            case 0:  # a number
                _, last = _varint(data, place)
            case 1:  # eight bytes
                last = place + 8
            case 5:  # four bytes
                last = place + 4
            case 2:  # a length, and so many bytes
                size, place = _varint(data, place)
                last = place + size
            case _:
                raise ValueError("no such wire type")
        if last > end:
            raise ValueError("a field is cut short")
        yield tag >> 3, start, place, last
        place = last


def _varint(data: Buffer, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("a number is cut short")


def _tagged(number: int, payload: bytes) -> bytes:
    """Return a field of bytes: tag, length, payload."""
    return _as_varint(number << 3 | 2) + _as_varint(len(payload)) + payload


def _as_varint(value: int) -> bytes:
    head = bytearray()
    while value >= 0x80:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*head, value])
