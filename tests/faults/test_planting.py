"""The faults are real: in ONNX Runtime the faulty copy is far worse than the sound one."""

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from tests.faults.planting import FAULTS, Planted
from tests.faults.surgery import left_in_float, sites


def outputs(model: onnx.ModelProto, data: dict[str, np.ndarray]) -> np.ndarray:
    """Run a model as its text says, with no operator fused into another."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, data)[0]


def distance(model: onnx.ModelProto, reference: np.ndarray, data: dict[str, np.ndarray]) -> float:
    """Return the squared error of the outputs over the square of the reference."""
    return float(((outputs(model, data) - reference) ** 2).sum() / (reference**2).sum())


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_fault_is_the_largest_damage(plant: Callable[[], Planted]) -> None:
    fault = plant()
    reference = outputs(fault.float_model, fault.data)
    damage = distance(fault.faulty, reference, fault.data)
    left = {
        site: distance(left_in_float(fault.faulty, site, fault.float_model), reference, fault.data)
        for site in sites(fault.faulty)
    }
    assert min(left, key=lambda site: left[site]) == fault.site
    assert left[fault.site] < 0.75 * damage
