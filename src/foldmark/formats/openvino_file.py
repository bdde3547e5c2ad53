"""OpenVINO IR: X.xml describes the layers, X.bin holds their constants.

A compressed weight is a constant of u8, i8, u4 or i4 and a chain behind it:
    Const -> Convert -> [Subtract a Const, or a Const through Convert] -> Multiply by a Const
    value = (code - zero_point) * scale
NNCF's groups stand as (out, groups, group size) with a scale of (out, groups, 1) and are shown
as (out, in). The XML is read with every document type and entity refused.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from xml.parsers import expat

import numpy as np

from foldmark.errors import FormatNotRecognised, HostileFile, NotSupported
from foldmark.formats.activations import StoredActivation
from foldmark.formats.entry import Entry
from foldmark.formats.plain import part_of, plain_tensor
from foldmark.formats.scaled_blocks import ScaledBlocks
from foldmark.formats.source import FileBytes
from foldmark.formats.stored import Artefact, Part, StoredTensor
from foldmark.formats.values import Array, Layout

__all__ = ["read_openvino"]

# What is held in memory: the length of the description, and its layers and edges.
_LONGEST_XML, _MOST_ELEMENTS = 1 << 28, 400_000
_CHUNK = 1 << 16
# element type -> number format
_TYPES: Mapping[str, str] = {
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "f8e8m0": "float8_e8m0fnu",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "boolean": "bool",
    "i4": "int4",
    "u4": "uint4",
}
_CODES = ("i8", "u8", "i4", "u4")


@dataclass
class _Layer:
    """One layer of the description."""

    number: str
    name: str
    kind: str
    data: dict[str, str] = field(default_factory=dict)


@dataclass
class _Network:
    """Layers by number and the edges between them."""

    where: str
    layers: dict[str, _Layer] = field(default_factory=dict)
    users: dict[str, list[str]] = field(default_factory=dict)
    makers: dict[tuple[str, str], str] = field(default_factory=dict)
    root: str = ""
    held: int = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        """Take one XML element."""
        self.root = self.root or tag
        self.held += tag in ("layer", "edge")
        if self.held > _MOST_ELEMENTS:
            raise NotSupported(
                "not supported: a description of so many layers and edges",
                where=self.where,
                expected=f"at most {_MOST_ELEMENTS}, for they are held in memory",
            )
        if tag == "layer":
            layer = _Layer(
                attributes.get("id", ""), attributes.get("name", ""), attributes.get("type", "")
            )
            if layer.number in self.layers:
                raise HostileFile("a layer's number stands twice", where=self.where)
            self.layers[layer.number] = layer
        elif tag == "data" and self.layers:
            next(reversed(self.layers.values())).data.update(attributes)
        elif tag == "edge":
            source, target = attributes.get("from-layer", ""), attributes.get("to-layer", "")
            self.users.setdefault(source, []).append(target)
            self.makers[target, attributes.get("to-port", "")] = source

    def user(self, layer: _Layer) -> _Layer | None:
        """Return the one layer that takes this layer's value, None when there is no single one."""
        users = self.users.get(layer.number, [])
        return self.layers.get(users[0]) if len(users) == 1 else None

    def maker(self, layer: _Layer, port: str) -> _Layer | None:
        """Return the layer that a layer's input comes from."""
        return self.layers.get(self.makers.get((layer.number, port), ""))

    def constant_at(self, layer: _Layer, port: str) -> _Layer | None:
        """Return the constant, direct or through Convert, that a layer takes at an input."""
        maker = self.maker(layer, port)
        if maker is not None and maker.kind == "Convert":
            maker = self.maker(maker, "0")
        return maker if maker is not None and maker.kind == "Const" else None

    def constant_of(self, layer: _Layer, besides: _Layer) -> _Layer | None:
        """Return the constant, direct or through Convert, that a layer takes beside another."""
        for port in ("0", "1"):
            if self.maker(layer, port) is not besides:
                constant = self.constant_at(layer, port)
                if constant is not None:
                    return constant
        return None


def read_openvino(path: Path) -> Artefact:
    """Read the description; constants are read when asked for.

    Raises:
        HostileFile: entities, broken XML, or constants outside the weights.
        FileUnreadable: no .bin beside the .xml.
        NotSupported: an element type without a reader.
    """
    xml = FileBytes(path)
    network = _parse(xml, str(path))
    if network.root != "net":
        raise FormatNotRecognised("XML, but not OpenVINO's", where=str(path), got=network.root[:40])
    weights = FileBytes(path.with_suffix(".bin"))
    taken: set[str] = set()
    counted: set[tuple[int, int]] = set()
    tensors = []
    constants = [layer for layer in network.layers.values() if layer.kind == "Const"]
    for layer in constants:
        if layer.data.get("element_type") in _CODES:
            found = _compressed(network, layer)
            if found is not None:
                taken |= {part.number for part in found if part is not None}
                tensors.append(_stored(_constants(weights, found), counted))
    for layer in constants:
        if layer.number not in taken:
            tensors.append(_plain(_constant(weights, layer), counted))
    return Artefact(
        path,
        "OpenVINO IR",
        (xml, weights),
        tuple(tensors),
        xml.size,
        {"layers": str(len(network.layers))},
        activations=tuple(_activations(network, weights)),
    )


def _activations(network: _Network, weights: FileBytes) -> Iterator[StoredActivation]:
    """Yield what FakeQuantize puts on a grid: levels from the low end of a range to the high one.

    scale = (high - low) / (levels - 1), zero point = -low / scale
    """
    loaded: dict[str, Array] = {}
    for layer in network.layers.values():
        if layer.kind != "FakeQuantize":
            continue
        value, levels = network.maker(layer, "0"), layer.data.get("levels", "")
        if value is None or network.constant_at(layer, "0") is not None:
            continue  # a weight
        low, high = (network.constant_at(layer, port) for port in ("3", "4"))
        if low is None or high is None or not levels.isdecimal() or not 1 < int(levels) <= 1 << 16:
            continue
        for end in (low, high):
            if end.number not in loaded:
                numbers = _constant(weights, end).load()
                loaded[end.number] = numbers.astype(np.float32).reshape(-1)
        ends = [loaded[end.number] for end in (low, high)]
        if ends[0].size != ends[1].size:
            continue
        with np.errstate(all="ignore"):  # ranges that are none: compared, not judged
            scale = (ends[1] - ends[0]) / np.float32(int(levels) - 1)
            zero = np.rint(-ends[0] / scale)
        yield StoredActivation(value.name, f"{levels} levels", scale, zero if zero.any() else None)


def _parse(xml: FileBytes, where: str) -> _Network:
    if xml.size > _LONGEST_XML:
        raise HostileFile("the description is too long", where=where, got=str(xml.size))
    network = _Network(where)
    parser = expat.ParserCreate()

    def refuse(*_: object) -> None:
        raise HostileFile("the XML declares a document type or entities", where=where)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = network.start
    try:
        for start in range(0, xml.size, _CHUNK):
            length = min(_CHUNK, xml.size - start)
            parser.Parse(xml.read(start, length, "description"), start + length == xml.size)
    except (expat.ExpatError, ValueError, LookupError) as fault:
        raise HostileFile("the XML is broken", where=where, got=str(fault)) from fault
    return network


def _compressed(network: _Network, codes: _Layer) -> tuple[_Layer, _Layer, _Layer | None] | None:
    """Follow the chain behind a constant: return codes, scale and zero point."""
    convert = network.user(codes)
    if convert is None or convert.kind != "Convert":
        return None
    before, after, zero_point = convert, network.user(convert), None
    if after is not None and after.kind == "Subtract":
        if network.makers.get((after.number, "0")) != convert.number:
            return None  # this constant is the zero point of another
        zero_point = network.constant_of(after, before)
        before, after = after, network.user(after)
    if after is None or after.kind != "Multiply":
        return None
    scale = network.constant_of(after, before)
    return None if scale is None else (codes, scale, zero_point)


def _constant(weights: FileBytes, layer: _Layer) -> Entry:
    where = f"{weights.path}: {layer.name!r}"
    kind = layer.data.get("element_type", "")
    if kind not in _TYPES:
        raise NotSupported(f"not supported: OpenVINO element type {kind[:20]!r}", where=where)
    number_format = _TYPES[kind]
    text = [n.strip() for n in layer.data.get("shape", "").split(",") if n.strip()]
    numbers = [*text, layer.data.get("offset", ""), layer.data.get("size", "")]
    if not all(n.isascii() and n.isdigit() and len(n) < 19 for n in numbers):
        raise HostileFile("a constant has an impossible shape or place", where=where)
    *shape, offset, size = (int(n) for n in numbers)
    entry = Entry(layer.name, number_format, tuple(shape), weights, offset)
    if entry.nbytes != size:
        raise HostileFile(
            "a constant does not hold what its shape says", where=where, got=f"{size} bytes"
        )
    weights.check(offset, size, f"constant {layer.name!r}")
    return entry


def _constants(
    weights: FileBytes, found: tuple[_Layer, _Layer, _Layer | None]
) -> tuple[Entry, Entry, Entry | None]:
    codes, scale, zero_point = found
    zeros = None if zero_point is None else _constant(weights, zero_point)
    return _constant(weights, codes), _constant(weights, scale), zeros


def _parts_once(counted: set[tuple[int, int]], roles: dict[Part, Entry | None]) -> dict[Part, int]:
    """Count each place in the file once: constants may share one."""
    parts = {}
    for part, constant in roles.items():
        if constant is not None:
            place = (constant.span.offset, constant.span.nbytes)
            parts[part] = 0 if place in counted else constant.span.nbytes
            counted.add(place)
    return parts


def _stored(
    constants: tuple[Entry, Entry, Entry | None], counted: set[tuple[int, int]]
) -> StoredTensor:
    codes, scale, zeros = constants
    block = _block(codes, scale)
    if zeros is not None and math.prod(zeros.shape) not in (1, math.prod(scale.shape)):
        raise HostileFile("as many zero points as scales are needed", where=codes.name)
    shape, block = _flattened(codes.shape, block)
    layout = Layout(
        codes.number_format,
        block,
        scale.number_format,
        "none" if zeros is None else "stored",
        "OpenVINO compressed",
    )
    spans = tuple(c.span for c in (codes, scale, zeros) if c is not None)
    roles = {Part.CODES: codes, Part.SCALES: scale, Part.ZERO_POINTS: zeros}
    blocks = ScaledBlocks(codes, scale, zeros, shape, block)
    return blocks.tensor(codes.name, layout, spans, _parts_once(counted, roles))


def _block(codes: Entry, scale: Entry) -> tuple[int, ...]:
    counts = scale.shape
    if math.prod(counts) == 1:
        return tuple(max(1, n) for n in codes.shape)
    counts = (1,) * (len(codes.shape) - len(counts)) + counts
    pairs = list(zip(codes.shape, counts, strict=False))
    if len(counts) != len(codes.shape) or not all(c in (1, n) for n, c in pairs):
        raise HostileFile(
            "the scale does not fit its codes",
            where=codes.name,
            got=f"scale {list(scale.shape)} for codes {list(codes.shape)}",
        )
    return tuple(1 if c == n else max(1, n) for n, c in pairs)


def _flattened(
    shape: tuple[int, ...], block: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Show (out, groups, group size) as (out, in)."""
    if len(shape) == 3 and block[:2] == (1, 1) and block[2] == shape[2]:
        return (shape[0], shape[1] * shape[2]), (1, shape[2])
    return shape, block


def _plain(constant: Entry, counted: set[tuple[int, int]]) -> StoredTensor:
    role: dict[Part, Entry | None] = {part_of(constant.number_format): constant}
    return replace(plain_tensor(constant), parts=_parts_once(counted, role))
