"""Every planted fault is the first entry, with the right element, channel and cause."""

from collections.abc import Callable

import pytest
from tests.faults.planting import FAULTS, Planted, a_bias_too_large_for_int32

import foldmark
from foldmark.report.reasons import main_cause


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_the_fault_comes_first(plant: Callable[[], Planted]) -> None:
    fault = plant()
    report = foldmark.explain(fault.float_model, fault.faulty, fault.data, metric="mse")
    first = report.entries[0]
    assert first.site.name == fault.site
    assert first.amount > 0.15 * report.closure.sites
    assert abs(report.closure.relative_error) <= 1e-4
    for axis, index in fault.element.items():
        assert first.facts.setter.index[axis] == index
    if fault.cause:
        assert main_cause(first)[0].value == fault.cause
    alone = [fix for fix in report.fixes if fault.site in fix.sites]
    assert max(fix.measured or 0 for fix in alone) > 0.15 * report.closure.sites
    if fault.group is not None:
        assert first.groups[0].index == fault.group[1]


def test_a_runtime_that_parts_from_the_model_is_named() -> None:
    """ONNX Runtime takes a Gemm's bias to have the scale of its product; here it has not."""
    fault = a_bias_too_large_for_int32()
    report = foldmark.explain(
        fault.float_model, fault.faulty, fault.data, metric="mse", samples=16, cures=False
    )
    assert report.closure.kernel > 0.9 * report.closure.total
    assert report.kernels[0].operator == "Gemm"
    assert "Gemm '/head/Gemm'" in report.verdict
