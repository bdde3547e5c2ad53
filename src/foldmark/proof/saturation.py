"""Pairs of u8 x s8 products that would saturate on a processor without VNNI, counted exactly.

VPMADDUBSW multiplies unsigned by signed bytes and adds each two neighbouring products into a
16-bit integer with saturation. 2 * 255 * 127 = 64770 does not fit 32767, so such a pair is cut
short; VNNI adds into 32 bits and has no such limit. The neighbours are those along the sum, in
the order of the kernel: k for a MatMul, (row, column, channel) of the window for a convolution.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from foldmark.errors import FoldmarkError
from foldmark.kernels.compiled import compiled
from foldmark.proof.quality import Quality, ScoreFunction, measure_quality
from foldmark.proof.saturating import (
    IntegerProduct,
    SaturatingSession,
    dynamic_codes,
    integer_products,
    windows,
)
from foldmark.runtimes.batches import Data
from foldmark.runtimes.onnxruntime import Optimization, Session
from foldmark.runtimes.profile import Execution
from foldmark.runtimes.runtime import Runnable

__all__ = [
    "Saturation",
    "SaturationCost",
    "count_saturated_pairs",
    "saturation_cost",
    "saturations",
]

_ROWS = 64  # rows of activations examined per operator and batch
_WORK = 5e10  # multiply-accumulates that the cost is measured on
_LOW, _HIGH = -32768, 32767


@dataclass(frozen=True)
class Saturation:
    """Saturating pairs of one operator.

    Attributes:
        node: its name in the rewritten graph.
        saturated: pairs that would saturate.
        examined: pairs looked at.
        worst: largest error of one sum of pairs, in units of the int32 accumulator.
    """

    node: str
    saturated: int
    examined: int
    worst: int


@compiled
def count_saturated_pairs(
    activations: NDArray[np.uint8], weights: NDArray[np.int8]
) -> tuple[int, int]:
    """Count pairs that VPMADDUBSW would saturate.

    activations  (m, k)  uint8
    weights      (n, k)  int8, one row per output
    ->           (pairs with a[2i] w[2i] + a[2i+1] w[2i+1] outside int16,
                  largest |error| of one of the m n sums)
    """
    count, worst = 0, 0
    rows, inner = activations.shape
    for row in range(rows):
        for column in range(weights.shape[0]):
            error = 0
            for k in range(0, inner - 1, 2):
                pair = int(activations[row, k]) * int(weights[column, k]) + int(
                    activations[row, k + 1]
                ) * int(weights[column, k + 1])
                if pair > _HIGH:
                    count += 1
                    error += _HIGH - pair
                elif pair < _LOW:
                    count += 1
                    error += _LOW - pair
            worst = max(worst, abs(error))
    return count, worst


@dataclass(frozen=True)
class SaturationCost:
    """What saturating pairs would do to the outputs: the kernel line under that instruction.

    Attributes:
        samples: samples that were run.
        exact: the quantized model with sums as they are, beside the float model.
        saturated: the same with saturating pairs.
    """

    samples: int
    exact: Quality
    saturated: Quality


def saturation_cost(
    float_session: Runnable,
    execution: Execution,
    data: Data,
    macs_per_sample: float,
    *,
    threads: int | None = None,
    score: ScoreFunction | None = None,
    score_name: str = "score",
    together: int = 1,
) -> SaturationCost | None:
    """Run the model as a processor without VNNI would, and measure what that changes.

    Samples are as many as some 5 * 10 ** 10 multiply-accumulates allow, 8 to 512. None when the
    graph holds a product that can't be run apart from it.
    """
    limit = max(int(np.clip(_WORK / max(macs_per_sample, 1.0), 8, 512)) // together, 1) * together
    few = replace(data, limit=min(limit, data.limit or limit))
    found = []
    for saturate in (False, True):
        try:
            session = SaturatingSession(execution.graph, threads, saturate=saturate)
            quality = measure_quality(
                float_session,
                session,
                few,
                batch_size=8,
                score=score,
                score_name=score_name,
                together=together,
            )
        except FoldmarkError:
            return None
        found.append(quality)
    return SaturationCost(found[0].samples, *found)


def saturations(execution: Execution, data: Data, batch_size: int) -> tuple[Saturation, ...]:
    """Count the saturating pairs of every u8 x s8 operator on the first batch of the data.

    Args:
        execution: the model as ONNX Runtime rewrote it, optimized no further than EXTENDED.
        data: samples.
        batch_size: samples of the batch; of each operator 64 rows of activations, evenly
            spread, are examined.
    """
    products = list(integer_products(execution.graph))
    if not products:
        return ()
    zeros = {each.zero_point for each in products if each.is_convolution} - {""}
    stored = {
        t.name: numpy_helper.to_array(t)
        for t in execution.graph.graph.initializer
        if t.name in zeros
    }
    session = Session(
        execution.graph,
        taps=list(dict.fromkeys([*(p.activation for p in products), *(zeros - stored.keys())])),
        optimization=Optimization.OFF,
    )
    batch = next(iter(data.batches(batch_size)))
    values = stored | session.run(batch.feeds)
    return tuple(_counted(each, values) for each in products)


def _counted(product: IntegerProduct, values: Mapping[str, NDArray[np.generic]]) -> Saturation:
    tapped = values[product.activation]
    codes = dynamic_codes(tapped)[0] if tapped.dtype == np.float32 else tapped.view(np.uint8)
    if product.is_convolution:
        # Every group multiplies alike; the first stands for them all.
        groups = codes.shape[1] // product.codes.shape[1]
        weights = product.codes[: len(product.codes) // groups]
        padding = int(values[product.zero_point].ravel()[0]) if product.zero_point else 0
        inside = codes[:, : weights.shape[1]]
        rows, _ = windows(product.node, inside, weights.shape[2:], padding)
        weights = np.moveaxis(weights, 1, -1).reshape(len(weights), -1)
    else:
        rows, weights = codes.reshape(-1, codes.shape[-1]), product.codes
    if len(rows) > _ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, _ROWS).astype(int)]
    count, worst = count_saturated_pairs(np.ascontiguousarray(rows), np.ascontiguousarray(weights))
    examined = len(rows) * len(weights) * (weights.shape[1] // 2)
    return Saturation(product.node.name, int(count), examined, int(worst))
