"""What is added at every place of the float graph: all errors by an amount, or some of them."""

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from foldmark.errors import DataMismatch
from foldmark.graphs.injection import AMOUNT, Place
from foldmark.ledger.across import Across
from foldmark.ledger.recording import Float32, Recording
from foldmark.runtimes.onnxruntime import Array

__all__ = ["AddedErrors"]

# Stored tensors with their errors are kept for the last amounts, as many as fit; one at least.
_KEPT_BYTES = 200_000_000


class AddedErrors:
    """Turns a batch's recorded errors into the inputs of the graph that takes them.

    Args:
        places: where errors are added; sites may share one.
        across: spreads the work.
    """

    def __init__(self, places: Sequence[Place], across: Across) -> None:
        self._activations = [place for place in places if place.stored is None]
        self._stored = [place for place in places if place.stored is not None]
        self._names = frozenset(name for place in places for name in place.sites)
        self._across = across
        self._moved: dict[float, Mapping[str, Float32]] = {}
        self._whole: dict[str, tuple[weakref.ref[Recording], Float32]] = {}

    def nothing(self) -> dict[str, Array]:
        """Return the inputs that add no error anywhere."""
        zero = np.zeros((), np.float32)
        return {
            **{place.errors: zero for place in self._activations},
            **{place.value: place.stored for place in self._stored if place.stored is not None},
            AMOUNT: zero,
        }

    def everything(self, recording: Recording, amount: float) -> dict[str, Array]:
        """Return the inputs that add this amount of every error."""
        return {
            **self.of_activations(recording),
            **self.stored_at(recording, amount),
            AMOUNT: np.array(amount, np.float32),
        }

    def some(
        self,
        recording: Recording,
        amount: float,
        *,
        without: Iterable[str],
        only: Iterable[str] | None,
        instead: Mapping[str, Float32],
    ) -> dict[str, Array]:
        """Return the inputs that add this amount of some errors, or of others in their place.

        Raises DataMismatch for the name of no site. The arguments are those of `Replay.outputs`.
        """
        on = self._switched_on(without, only)
        inputs: dict[str, Array] = {AMOUNT: np.array(amount, np.float32)}
        for place in self._activations:
            errors = self._errors(recording, place, on, instead)
            inputs[place.errors] = np.zeros((), np.float32) if errors is None else errors
        for place in self._stored:
            assert place.stored is not None
            errors = self._errors(recording, place, on, instead)
            if errors is None:
                inputs[place.value] = place.stored
            elif errors is self._whole_error(recording, place):
                inputs[place.value] = self.stored_at(recording, amount)[place.value]
            else:
                inputs[place.value] = place.stored + np.float32(amount) * errors
        return inputs

    def of_activations(self, recording: Recording) -> dict[str, Float32]:
        """Return what every place of activations adds when all sites are on."""
        errors = self._across(lambda place: self._whole_error(recording, place), self._activations)
        return dict(zip((place.errors for place in self._activations), errors, strict=True))

    def stored_at(self, recording: Recording, amount: float) -> Mapping[str, Float32]:
        """Return every stored tensor with this amount of its errors, the same in every batch."""
        if amount in self._moved:
            return self._moved[amount]
        size = sum(place.stored.nbytes for place in self._stored if place.stored is not None)
        memory: Mapping[str, Float32] = {}
        if (len(self._moved) + 1) * size > _KEPT_BYTES and self._moved:
            memory = self._moved.pop(next(iter(self._moved)))

        def move(place: Place) -> Float32:
            assert place.stored is not None
            errors = self._whole_error(recording, place)
            moved = memory[place.value] if memory else np.empty_like(errors)
            np.multiply(errors, np.float32(amount), out=moved)
            return np.add(moved, place.stored, out=moved)

        moved = self._across(move, self._stored)
        self._moved[amount] = dict(zip((p.value for p in self._stored), moved, strict=True))
        return self._moved[amount]

    def _switched_on(self, without: Iterable[str], only: Iterable[str] | None) -> set[str]:
        """Return the names of the sites that add their error."""
        off = set(without)
        kept = set(self._names) if only is None else set(only)
        if unknown := (off | kept) - self._names:
            raise DataMismatch("no such site", where=repr(sorted(unknown)[0]))
        return kept - off

    def _errors(
        self,
        recording: Recording,
        place: Place,
        on: Collection[str],
        instead: Mapping[str, Float32],
    ) -> Float32 | None:
        """Return what a place adds when these sites are on, None for nothing."""
        names = [name for name in place.sites if name in on]
        changed = [name for name in names if name in instead]
        if not changed and len(names) == len(place.sites):
            return self._whole_error(recording, place)
        if not names:
            return None
        errors = [instead.get(name, recording.delta[name]) for name in names]
        return errors[0] if len(errors) == 1 else _summed(errors, np.empty_like(errors[0]))

    def _whole_error(self, recording: Recording, place: Place) -> Float32:
        """Return the sum of a place's errors, added up once a recording."""
        first = recording.delta[place.sites[0]]
        if len(place.sites) == 1:
            return first
        of, total = self._whole.get(place.value, (None, None))
        if of is not None and of() is recording and total is not None:
            return total
        # Memory of the recording before: touching memory anew costs more than the sum.
        if total is None or total.shape != first.shape:
            total = np.empty_like(first)
        _summed([recording.delta[name] for name in place.sites], total)
        self._whole[place.value] = (weakref.ref(recording), total)
        return total


def _summed(arrays: Sequence[Float32], total: Float32) -> Float32:
    """Return the sum of several arrays, written into `total`."""
    np.add(arrays[0], arrays[1], out=total)
    for more in arrays[2:]:
        np.add(total, more, out=total)
    return total
