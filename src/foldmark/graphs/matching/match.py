"""Finding the float tensor that a quantized weight was made from."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from foldmark.graphs.matching.float_weights import FloatWeights
from foldmark.graphs.matching.likeness import ALIKE, correlation, distance, fitted, layouts
from foldmark.graphs.matching.pieces import cut, joined
from foldmark.graphs.matching.smoothing import factors_into_activations, rescaled
from foldmark.graphs.reading.names import without_suffixes
from foldmark.graphs.reading.workspace import Draft
from foldmark.graphs.sites import NO_FLOAT_MODEL

__all__ = ["Match", "match_weights"]

Array = NDArray[Any]


@dataclass(frozen=True)
class Match:
    """A float original.

    Attributes:
        name: of the tensor in the float model.
        array: in the layout of the quantized weight.
        likeness: correlation of the two.
        source: its name where an optimizer renamed it, "" where it did not.
    """

    name: str
    array: Array
    likeness: float
    source: str = ""

    @property
    def is_whole(self) -> bool:
        """True when the array is the tensor of that name in its own layout."""
        return isinstance(self.array, np.memmap) and bool(self.array.flags.c_contiguous)


def match_weights(
    weights: list[tuple[Draft, Array]],
    known: FloatWeights | None,
    simulated: onnx.ModelProto,
) -> dict[str, Match | str]:
    """Return the original of each quantized weight, or the reason why there is none.

    Args:
        weights: each site with its dequantized values.
        known: where the originals are, None when there is no float model.
        simulated: the quantized model in float; it tells what a bias belongs to, and which
            channels were rescaled.

    Returns:
        by `Draft.after`.
    """
    if known is None:
        return {draft.after: _own(draft) or NO_FLOAT_MODEL for draft, _ in weights}
    drafted = {draft.after for draft, _ in weights}
    constants = {t.name: t for t in simulated.graph.initializer if t.name not in drafted}
    factors = factors_into_activations(known, constants)
    return _Search(known, list(simulated.graph.node), factors).run(weights)


def _own(draft: Draft) -> Match | None:
    """Return the float weight that the quantized model itself stores."""
    return None if draft.own is None else Match(draft.names[0], draft.own, 1.0)


class _Search:
    """The ways to find an original, the surest first."""

    def __init__(
        self, known: FloatWeights, nodes: list[onnx.NodeProto], factors: list[Array]
    ) -> None:
        self.known = known
        self.nodes = nodes
        self.factors = factors
        norms = sum(node.op_type == "BatchNormalization" for node in nodes)
        # A batch norm multiplied into a weight leaves its name and changes its values.
        self.is_folded = known.count("BatchNormalization") > norms

    def run(self, weights: list[tuple[Draft, Array]]) -> dict[str, Match | str]:
        """Match every weight, biases last, by the weights that they stand beside."""
        found: dict[str, Match | str] = {}
        for draft, values in sorted(weights, key=lambda pair: pair[1].ndim < 2):
            found[draft.after] = self._smoothed(self._one(draft, values, found), values)
        return found

    def _smoothed(self, match: Match | str, values: Array) -> Match | str:
        if isinstance(match, str):
            return match
        array = rescaled(match.array, values, self.factors)
        return (
            match
            if array is None
            else replace(match, array=array, likeness=correlation(array, values))
        )

    def _one(self, draft: Draft, values: Array, found: dict[str, Match | str]) -> Match | str:
        named = None if self.is_folded else self._by_name(draft, values)
        if named is not None:
            return named
        for search in (self._beside(draft, found), _by_content, _by_pieces):
            for source in self._sources():
                match = search(values, source)
                if match is not None:
                    return match
        return _own(draft) or self._by_name(draft, values) or self._reason(values)

    def _sources(self) -> Iterator[FloatWeights]:
        """Yield the float model and its optimized form, first the one more like the quantized."""
        if not self.is_folded:
            yield self.known
        if self.known.optimized is not None:
            yield self.known.optimized
        if self.is_folded:
            yield self.known

    def _by_name(self, draft: Draft, values: Array) -> Match | None:
        for given in draft.names:
            for name in without_suffixes(given):
                if name in self.known.tensors:
                    array = fitted(self.known.array(name), values)
                    if array is not None:
                        return Match(name, array, correlation(array, values))
        return None

    def _beside(
        self, draft: Draft, found: dict[str, Match | str]
    ) -> Callable[[Array, FloatWeights], Match | None]:
        """Return a search for the bias of the layer whose weight is matched already."""
        layers = [node for node in self.nodes if draft.after in list(node.input)[2:3]]
        weights = [found.get(node.input[1]) for node in layers]

        def search(values: Array, source: FloatWeights) -> Match | None:
            for weight in weights:
                if not isinstance(weight, Match):
                    continue
                name = source.bias_of(weight.source or weight.name)
                array = None if name is None else fitted(source.array(name), values)
                if name is not None and array is not None and distance(array, values) < 1:
                    shown = _FUSED.sub("", name)
                    return Match(shown, array, correlation(array, values))
            return None

        return search

    def _reason(self, values: Array) -> str:
        best, score = None, -1.0
        for name in self.known.of_size(values.size):
            for layout in layouts(self.known.array(name), values.shape):
                if (alike := correlation(layout, values)) > score:
                    best, score = name, alike
        if best is None:
            return f"no float tensor of shape {list(values.shape)}"
        nearest = f"the nearest, {best!r}, correlates at {score:.2f}"
        return f"no float tensor resembles it; {nearest}"


def _by_content(values: Array, source: FloatWeights) -> Match | None:
    """Return the constant that resembles a weight most, in whatever layout."""
    best: Match | None = None
    for name in source.of_size(values.size):
        for layout in layouts(source.array(name), values.shape):
            alike = correlation(layout, values)
            if alike > (ALIKE if best is None else best.likeness) and distance(layout, values) < 1:
                best = Match(_FUSED.sub("", name), layout, alike, name)
    return best


# What ONNX Runtime's optimizer puts before the name of a weight that it multiplied into.
_FUSED = re.compile(r"^Conv\w*?Fusion_(BN_|Mul_|Add_)?[WB]_")


def _by_pieces(values: Array, source: FloatWeights) -> Match | None:
    found = joined(values, source) or cut(values, source)
    return None if found is None else Match(*found, correlation(found[1], values))
