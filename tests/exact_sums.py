"""Integer sums that are exact on any processor, for tests of what foldmark writes.

On x86 without VNNI, pairs of uint8 x int8 products are cut to 16 bits: outputs of a right model are
wrong there, as `foldmark verify` tells. ONNX Runtime avoids it where it is asked to, but then opens
no model with LSTMs, with one weight of two products, or with int8 activations: weights of 7 bits
stand in there, whose pairs fit.
"""

from collections.abc import Iterator

import onnxruntime
import pytest

from foldmark.exact.tools.onnxruntime import ONNXRUNTIME_WEIGHT_INT8_REDUCED
from foldmark.runtimes.onnxruntime import EXACT_SUMS

__all__ = ["SEVEN_BITS", "exact_sums"]

SEVEN_BITS = ONNXRUNTIME_WEIGHT_INT8_REDUCED.name


@pytest.fixture(autouse=True)
def exact_sums(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ask every session of a test for sums that do not saturate, unless it is marked."""
    plain = onnxruntime.SessionOptions

    def options() -> onnxruntime.SessionOptions:
        made = plain()
        made.add_session_config_entry(EXACT_SUMS, "1")
        return made

    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("sessions_as_they_are") is None:
            patch.setattr(onnxruntime, "SessionOptions", options)
        yield
