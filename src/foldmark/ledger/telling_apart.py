"""Whether the samples of a batch can be told apart, and what it takes."""

from collections.abc import Mapping

import numpy as np

from foldmark.errors import DataMismatch, NotSupported
from foldmark.graphs.derivative.prepare import opset_of
from foldmark.graphs.derivative.samples import Apart, Meetings
from foldmark.graphs.derivative.tape import Tape
from foldmark.graphs.injection import Injected
from foldmark.ledger.built import error_input
from foldmark.ledger.looking import Looking
from foldmark.runtimes.onnxruntime import Array

__all__ = ["TellingApart"]

# A batch of at least so many samples can be told apart.
_LEAST = 2
# Outputs of a sample alone and in a batch differ by no more, in parts of the largest.
_TOLERANCE = 1e-3
_UNKNOWN = object()


class TellingApart:
    """Finds out once, by running a sample alone and in its batch.

    Args:
        injected: the float graph that takes errors.
        looking: runs it.
    """

    def __init__(self, injected: Injected, looking: Looking) -> None:
        self._injected = injected
        self._looking = looking
        self._outputs = tuple(value.name for value in injected.model.model.graph.output)
        self._found: Apart | object | None = _UNKNOWN

    def apart(self, feeds: Mapping[str, Array], samples: int) -> Apart | None:
        """Return what tells the samples of a batch apart, None where nothing does.

        It must be that outputs do not depend on what else is in the batch, that the first axis
        of every tensor with a site counts the samples, and that stored tensors enter linearly.
        """
        if samples < _LEAST or self._looking.reprobes:
            return None
        if self._found is not _UNKNOWN:
            return self._found  # type: ignore[return-value]
        self._found = None
        one = {name: array[:1] if array.ndim else array for name, array in feeds.items()}
        try:
            (many, outputs), (single, alone) = self._looking.look(feeds), self._looking.look(one)
        except DataMismatch:
            return None  # the model takes so many samples and no others
        sampled = frozenset(
            name
            for name, fact in many.items()
            if name in single
            and fact.shape[:1] == (samples,)
            and single[name].shape == (1, *fact.shape[1:])
        )
        places, model = self._injected.places, self._injected.model.model
        errors = {
            error_input(site): place.value
            for place in places
            for site in place.sites
            if place.stored is not None
        }
        found = Apart(sampled, errors)
        try:
            Meetings(found, model.graph.node, Tape(many, opset_of(model)))
        except NotSupported:
            return None
        with_samples = [place.value for place in places if place.stored is None]
        if sampled.issuperset((*with_samples, *self._outputs)) and all(
            np.allclose(
                outputs[name][:1], alone[name], rtol=1e-3, atol=_TOLERANCE * _size(alone[name])
            )
            for name in self._outputs
        ):
            self._found = found
        return self._found


def _size(array: Array) -> float:
    """Return the largest absolute value."""
    return float(np.abs(array.astype(np.float64)).max(initial=0.0))
