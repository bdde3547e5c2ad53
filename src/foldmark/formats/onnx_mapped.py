"""An ONNX file's bytes without its large weights, which are pointed at instead.

    ModelProto   ...  7: graph  ...
    graph        ...  5: initializer  5: initializer ...
    initializer  1: dims  2: data_type  8: name  9: raw_data   <- these bytes stay in the file

In the bytes returned such an initializer says that its data lies in another file, which is this
one, at the place where it is. What is left of a model of 90 MB is some kilobytes, and copying
it costs nothing.
"""

from collections.abc import Iterator
from typing import Final

__all__ = ["LARGE", "Buffer", "without_weights"]

_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 7, 5, 9, 13, 14
LARGE: Final = 1 << 16  # bytes; smaller ones are shapes and biases, read again and again

Buffer = bytes | memoryview
Field = tuple[int, int, int, int]
"""(number, start of the field, start of its payload, end)."""


def without_weights(data: Buffer, location: str, least: int = LARGE) -> bytes:
    """Return a ModelProto's bytes whose large weights name a place in the file `location`.

    data   the whole file
    least  bytes of a weight that is large

    Bytes that are no ModelProto come back as they are, for the reader to judge.
    """
    try:
        return b"".join(_rewritten(data, location, least))
    except ValueError:
        return bytes(data)


def _rewritten(data: Buffer, location: str, least: int) -> Iterator[Buffer]:
    """Yield the model's fields, the graph anew."""
    for number, start, payload, end in _fields(data, 0, len(data)):
        if number != _GRAPH:
            yield data[start:end]
            continue
        graph = b"".join(_graph(data, payload, end, (location, least)))
        yield _tagged(_GRAPH, graph)


def _graph(data: Buffer, start: int, end: int, place: tuple[str, int]) -> Iterator[Buffer]:
    kept = start
    for number, first, payload, last in _fields(data, start, end):
        if number == _INITIALIZER and last - payload >= place[1]:
            tensor = _tensor(data, payload, last, place)
            if tensor:
                yield data[kept:first]
                yield _tagged(_INITIALIZER, tensor)
                kept = last
    yield data[kept:end]


def _tensor(data: Buffer, start: int, end: int, place: tuple[str, int]) -> bytes:
    """Return a TensorProto without its raw data; nothing where it has no large ones."""
    location, least = place
    parts, raw = [], None
    for number, first, payload, last in _fields(data, start, end):
        if number in (_EXTERNAL_DATA, _DATA_LOCATION):
            return b""
        if number == _RAW_DATA and last - payload >= least:
            raw = payload, last - payload
        else:
            parts.append(bytes(data[first:last]))
    if raw is None:
        return b""
    for key, value in (("location", location), ("offset", str(raw[0])), ("length", str(raw[1]))):
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
    size, head = len(payload), bytearray([number << 3 | 2])
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + payload
