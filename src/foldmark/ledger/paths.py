"""Two models with control flow as the two flat graphs that a batch makes of them."""

from collections.abc import Mapping, Sequence

import onnx

from foldmark.errors import NotSupported
from foldmark.graphs.control_flow import (
    Observe,
    Specialised,
    has_control_flow,
    same_decisions,
    specialise,
)
from foldmark.runtimes.onnxruntime import Array, Session

__all__ = ["FlatPair", "flatten_pair"]


class FlatPair:
    """A float and a quantized model without control flow, and the guard of what they stand for.

    Attributes:
        exact: the float model, flat; the model itself when it was flat already.
        quantized: the quantized model, flat.
    """

    def __init__(self, exact: Specialised, quantized: Specialised, threads: int | None) -> None:
        self.exact = exact.model
        self.quantized = quantized.model
        self._guards = [
            (way, Session(way.model, taps=way.watched, threads=threads))
            for way in (exact, quantized)
            if way.decisions
        ]

    def check(self, feeds: Mapping[str, Array], where: str) -> None:
        """Raise NotSupported when a batch takes another path than the first one did.

        Args:
            feeds: the batch.
            where: what to call it in the message ("samples 8 to 15").
        """
        for way, session in self._guards:
            values = session.run(feeds, way.watched) if way.watched else {}
            departure = way.departure({**feeds, **values})
            if departure is not None:
                raise NotSupported(
                    "samples take different paths through the model",
                    where=where,
                    got="another path",
                    expected=f"as in the first batch: {departure.sentence()}",
                    todo="explain the samples of each path by themselves",
                )


def flatten_pair(
    exact: onnx.ModelProto,
    quantized: onnx.ModelProto,
    feeds: Mapping[str, Array],
    *,
    threads: int | None = None,
) -> FlatPair:
    """Return both models with the branches that the batch takes and loops unrolled.

    Raises ModelsDiffer when the two take different paths on the batch, naming the node.
    """

    def observe(model: onnx.ModelProto, names: Sequence[str]) -> Mapping[str, Array]:
        return Session(model, taps=names, threads=threads).run(feeds, names)

    one, other = _specialised(exact, observe), _specialised(quantized, observe)
    same_decisions(one, other)
    return FlatPair(one, other, threads)


def _specialised(model: onnx.ModelProto, observe: Observe) -> Specialised:
    return specialise(model, observe) if has_control_flow(model) else Specialised(model, ())
