"""Models with an If: every sample's own path is accounted for."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tests.models.branches import branches, branches_int8, samples

import foldmark


def test_both_paths_are_explained_and_close():
    data = samples(6)
    data = [{"x": data["x"][i : i + 1] + (0.6 if i % 2 else -0.6)} for i in range(6)]
    report = foldmark.explain(branches(), branches_int8(), data, metric="mse", batch_size=1)
    names = {entry.site.name for entry in report.entries}
    assert any("bold" in name for name in names)
    assert any("calm" in name for name in names)
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.replay_error <= 1e-5
    lines = report.closure
    total = lines.sites + lines.graph + lines.kernel + lines.quadrature
    assert total == pytest.approx(lines.total, rel=1e-9)
    assert any("2 paths" in note for note in report.notes)


def folded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose large weights are int8 codes, wherever in the branches they lie."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    fold_inside(copy.graph)
    return copy


def fold_inside(graph: onnx.GraphProto) -> None:
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                fold_inside(attribute.g)
        if node.op_type == "Constant" and node.attribute[0].name == "value":
            stored[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
    large = {n: a for n, a in stored.items() if a.dtype == np.float32 and a.size >= 4096}
    for name, array in large.items():
        scale = np.float32(np.abs(array).max() / 127)
        codes = np.rint(array / scale).astype(np.int8)
        parts = {f"{name}_quantized": codes, f"{name}_scale": scale}
        graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in parts.items())
        nodes.append(helper.make_node("DequantizeLinear", list(parts), [name], f"{name}_unfold"))
    kept = [n for n in graph.node if n.op_type != "Constant" or n.output[0] not in large]
    nodes += [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
    tensors = [onnx.TensorProto.FromString(t.SerializeToString()) for t in graph.initializer]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(t for t in tensors if t.name not in large)


VAD = find_spec("silero_vad")


@pytest.mark.skipif(VAD is None, reason="the package silero-vad is not installed")
def test_a_voice_detector_is_explained_through_its_branches():
    """An LSTM and convolutions inside If inside If; two sampling rates, two paths."""
    exact = onnx.load(Path(VAD.origin).parent / "data" / "silero_vad.onnx")
    time, draw = np.arange(576) / 16000, np.random.default_rng(0)
    tones = [np.sin(2 * np.pi * pitch * time) * 0.3 for pitch in np.linspace(120, 400, 6)]
    data = [
        {
            "input": (tone + 0.02 * draw.standard_normal(576)).astype(np.float32)[
                None, None, :length
            ],
            "state": (draw.standard_normal((1, 2, 1, 128)) / 10).astype(np.float32),
            "sr": np.array([rate], np.int64),
        }
        for tone, (rate, length) in zip(tones, [(16000, 576), (8000, 288)] * 3, strict=True)
    ]
    report = foldmark.explain(exact, folded(exact), data, cures=False)
    assert len(report.entries) > 6
    assert report.closure.total > 1e-6
    assert abs(report.closure.relative_error) <= 1e-4
    assert report.replay_error <= 1e-5
    assert not report.unmatched
    assert any("2 paths" in note for note in report.notes)
