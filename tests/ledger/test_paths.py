"""Models with an If: every sample's own path is accounted for."""

import pytest
from tests.models.branches import branches, branches_int8, samples

import foldmark


def test_both_paths_are_explained_and_close():
    data = samples(6)
    data = [{"x": data["x"][i : i + 1] + (0.6 if i % 2 else -0.6)} for i in range(6)]
    report = foldmark.explain(branches(), branches_int8(), data, metric="mse", batch_size=1)
    names = {entry.site.name for entry in report.entries}
    assert any("bold" in name for name in names)
    assert any("calm" in name for name in names)
    assert abs(report.closure.relative_error) <= 1e-3
    assert report.replay_error <= 1e-5
    lines = report.closure
    total = lines.sites + lines.graph + lines.kernel + lines.quadrature
    assert total == pytest.approx(lines.total, rel=1e-9)
    assert any("2 paths" in note for note in report.notes)
