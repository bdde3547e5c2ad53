"""Tensors of a file that hold the same bytes."""

from collections.abc import Mapping
from hashlib import blake2b

from foldmark.formats.stored import Artefact, StoredTensor
from foldmark.formats.values import Array

__all__ = ["twin_candidates", "twins"]

# Tensors that hold the same bytes are worth a word from this size on.
_SMALL_TWIN, _SAMPLE_BYTES = 1 << 12, 1 << 12


def twin_candidates(artefact: Artefact) -> set[int]:
    """Return the ids of tensors whose bytes agree with another's in a few samples."""
    groups: dict[tuple[object, ...], list[StoredTensor]] = {}
    for tensor in artefact.tensors:
        if tensor.nbytes >= _SMALL_TWIN and tensor.spans:
            key = (tensor.shape, tensor.layout, tuple(span.nbytes for span in tensor.spans))
            groups.setdefault(key, []).append(tensor)
    alike: dict[tuple[object, ...], list[int]] = {}
    for shared, group in groups.items():
        for tensor in group if len(group) > 1 else ():
            alike.setdefault((shared, _sampled(tensor)), []).append(id(tensor))
    return {number for numbers in alike.values() if len(numbers) > 1 for number in numbers}


def _sampled(tensor: StoredTensor) -> bytes:
    samples = blake2b()
    for span in tensor.spans:
        length = min(_SAMPLE_BYTES, span.nbytes)
        for start in (0, (span.nbytes - length) // 2, span.nbytes - length):
            samples.update(span.source.read(span.offset + start, length, tensor.name))
    return samples.digest()


def twins(artefact: Artefact, sums: Mapping[int, Array]) -> list[str]:
    """Say which tensors hold the same bytes."""
    first: dict[tuple[object, ...], str] = {}
    found = []
    for tensor in artefact.tensors:
        if id(tensor) in sums:
            key = (tensor.shape, tensor.layout, sums[id(tensor)].tobytes())
            if key in first:
                found.append(f"{tensor.name!r} holds the same bytes as {first[key]!r}")
            first.setdefault(key, tensor.name)
    return found
