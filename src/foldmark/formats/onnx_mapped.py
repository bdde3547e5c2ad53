"""An ONNX file's bytes without its large weights, which are pointed at instead.

    ModelProto   ...  7: graph  ...  25: function  ...
    graph        ...  1: node  1: node ...  5: initializer  5: initializer ...
    node         ...  5: attribute  ...
    attribute    ...  5: tensor, a Constant's  6: graph, a branch's or a loop's  ...
    tensor       1: dims  2: data_type  8: name  9: raw_data   <- these bytes stay in the file
                 4: float_data  10: double_data   <- and these, which are no different
                 5: int32_data  7: int64_data  11: uint64_data   <- these for who only looks

In the bytes returned such a tensor says that its data lies in another file, which is this one,
at the place where it is. What is left of a model of 90 MB is some kilobytes, and copying it costs
nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from foldmark.errors import NotSupported

__all__ = ["EVERYWHERE", "INITIALIZERS", "LARGE", "Buffer", "looked_at", "without_weights"]

_DATA_TYPE, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 2, 9, 13, 14
# a list of numbers whose bytes are those of raw data -> the element type that it is for
_LISTS: Final[Mapping[int, tuple[int, ...]]] = {4: (1,), 10: (11,)}
# a list whose numbers take as many bytes as each needs -> the element types that it is for
_COUNTED: Final[Mapping[int, tuple[int, ...]]] = {
    5: (2, 3, 4, 5, 6, 9, 10, 16, 17, 18, 19, 20, 21, 22, 23),
    7: (7,),
    11: (12, 13),
}
Messages = Mapping[str, Mapping[int, str]]
"""Message -> number of a field that is a message, or a text for people -> which one."""

INITIALIZERS: Final[Messages] = {"model": {7: "graph"}, "graph": {5: "tensor"}}
# runtimes demand that a Constant's tensor be inside the model: these are for looking only
EVERYWHERE: Final[Messages] = {
    "model": {6: "text", 7: "graph", 14: "property", 25: "function"},
    "graph": {1: "node", 5: "tensor", 10: "text", 16: "property"},
    "function": {7: "node", 8: "text", 14: "property"},
    "node": {5: "attribute", 6: "text", 9: "property"},
    "attribute": {5: "tensor", 6: "graph"},
    "property": {2: "text"},
}
_DEEPEST = 100  # messages within messages, as protobuf has it
LARGE: Final = 1 << 16  # bytes; smaller ones are shapes and biases, read again and again
# What is held in memory to look at a model: bytes of nodes, names and small tensors, and how many
# nodes and tensors, each of which takes a kilobyte or more.
_MOST_LEFT, _MOST_MESSAGES = 1 << 24, 100_000

Buffer = bytes | memoryview
Field = tuple[int, int, int, int]
"""(number, start of the field, start of its payload, end)."""


def without_weights(data: Buffer, location: str) -> bytes:
    """Return a ModelProto's bytes whose large initializers name a place in the file `location`.

    data   the whole file

    Bytes that are no ModelProto come back as they are, for the reader to judge.
    """
    try:
        parts = _Rewriter(data, location, None, LARGE, INITIALIZERS, None).message("model")
    except ValueError:
        parts = []
    return b"".join(parts) or bytes(data)


def looked_at(data: Buffer, location: str, listed: str, least: int, where: str) -> bytes:
    """Return a ModelProto's bytes for who only looks: large tensors left in it, long texts cut.

    data    the whole file
    listed  the location named by lists whose numbers take as many bytes as each needs
    least   bytes of a weight that is large
    where   what an error names

    Raises:
        NotSupported: what is left is too large to be held in memory.
    """
    most, too_large = _MOST_LEFT, False
    parts: list[Buffer] = []
    try:
        parts = _Rewriter(data, location, listed, least, EVERYWHERE, most).message("model")
    except _TooLarge:
        too_large = True
    except ValueError:
        pass  # the parser judges it
    if too_large or sum(map(len, parts or [data])) > most:
        raise NotSupported(
            "not supported: an ONNX model that is large without its weights",
            where=where,
            got=f"more than {most >> 20} MiB or {_MOST_MESSAGES} pieces of nodes, names, strings, "
            "or numbers that don't lie in one piece",
            expected="less, for they are held in memory",
            todo="load it with the onnx package and save it again, which joins lists of numbers",
        )
    return b"".join(parts) or bytes(data)


class _TooLarge(Exception):
    """More is left of a message than may be held in memory."""


@dataclass(frozen=True)
class _Rewriter:
    """What a model's bytes are asked for.

    Attributes:
        data: the whole file.
        location: what tensors name whose bytes are those of raw data.
        listed: what lists of numbers name that take as many bytes as each needs; None where
            they stay in the model.
        least: bytes of a tensor that is large.
        inside: where large tensors are looked for.
        most: bytes of a message beside its large tensors at most, None for any.
    """

    data: Buffer
    location: str
    listed: str | None
    least: int
    inside: Messages
    most: int | None

    def message(self, kind: str, start: int = 0, end: int = -1, depth: int = 0) -> list[Buffer]:
        """Return a message whose large tensors lie elsewhere, in parts; none where it has none."""
        end = len(self.data) if end < 0 else end
        if kind == "tensor":
            return self.tensor(start, end)
        if kind == "text":
            return [f"[{end - start} bytes]".encode()] if end - start >= LARGE else []
        if depth > _DEEPEST:
            return []
        parts: list[Buffer] = []
        kept, length, seen = start, 0, set()
        for count, field in enumerate(_fields(self.data, start, end)):
            number, first, payload, last = field
            if kind == "attribute" and number in seen:
                raise ValueError("a field stands twice: the parser merges the two")
            seen.add(number)
            inner = self.inside[kind].get(number)
            changed: list[Buffer] = []
            if inner is not None and last - payload >= self.least:
                changed = self.message(inner, payload, last, depth + 1)
            if changed:
                changed = _tagged(number, changed)
                parts += [self.data[kept:first], *changed]
                kept = last
            length += sum(map(len, changed)) if changed else last - first
            if self.most is not None and (length > self.most or count > _MOST_MESSAGES):
                raise _TooLarge
        return [*parts, self.data[kept:end]] if parts else []

    def tensor(self, start: int, end: int) -> list[Buffer]:
        """Return a TensorProto without its numbers; nothing where they are few or not in place."""
        parts: list[Buffer] = []
        found, kind, kept, length, count = {}, 0, start, 0, 0
        for number, first, payload, last in _fields(self.data, start, end):
            if number in (_EXTERNAL_DATA, _DATA_LOCATION) or number in found:
                return []
            if number == _DATA_TYPE:
                kind, _ = _varint(self.data, payload)
            if number == _RAW_DATA or number in _LISTS or number in _COUNTED:
                found[number] = payload, last - payload
                parts.append(self.data[kept:first])
                kept = last
            else:
                length += last - first
                count += 1
            if self.most is not None and (length > self.most or count > _MOST_MESSAGES):
                raise _TooLarge
        parts.append(self.data[kept:end])
        if len(found) != 1:
            return []
        ((number, (offset, length)),) = found.items()
        location, least = self.location, self.least
        if number in _COUNTED:
            # where their n-th number begins must be counted: worth it for large ones only
            location, least = self.listed or "", max(LARGE, least)
        if length < least or not location or kind not in _serves(number, kind):
            return []
        place = (("location", location), ("offset", str(offset)), ("length", str(length)))
        for key, value in place:
            entry = [*_tagged(1, [key.encode()]), *_tagged(2, [value.encode()])]
            parts += _tagged(_EXTERNAL_DATA, entry)
        return [*parts, bytes([_DATA_LOCATION << 3, 1])]


def _serves(number: int, kind: int) -> tuple[int, ...]:
    """Return the element types that a field of numbers is for; raw data is for any."""
    return _LISTS.get(number) or _COUNTED.get(number) or (kind,)


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


def _tagged(number: int, payload: list[Buffer]) -> list[Buffer]:
    """Return a field of bytes: tag, length, payload."""
    return [_as_varint(number << 3 | 2) + _as_varint(sum(map(len, payload))), *payload]


def _as_varint(value: int) -> bytes:
    head = bytearray()
    while value >= 0x80:
        head.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*head, value])
