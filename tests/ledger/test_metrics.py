"""Metrics: the number agrees with torch, the graph piece with the number."""

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch.nn import functional

from foldmark.errors import DataMismatch, OutputNotComparable
from foldmark.graphs.emitter import Emitter
from foldmark.ledger.layout import Layout
from foldmark.ledger.metrics import Metric, emit_metric, measure, metric_target

SHAPES = [(5, 7), (3, 4, 6), (2, 5, 3, 4)]


def arrays(shape, seed=0):
    draw = np.random.default_rng(seed)
    exact = draw.standard_normal(shape).astype(np.float32) * 3
    near = exact + draw.standard_normal(shape).astype(np.float32) * 0.3
    return exact, near


def target(metric, shape, *, probability=False, seed=0, scale=1.0):
    exact, near = arrays(shape, seed)
    if probability:
        exact, near = (torch.softmax(torch.from_numpy(a), -1).numpy() for a in (exact, near))
    layout = Layout.of("y", shape, shape[0])
    labels = np.random.default_rng(1).integers(0, layout.rows[2], layout.rows[:2])
    made = metric_target(
        metric,
        layout,
        exact,
        is_probability=probability,
        row_weight=None,
        labels=labels,
        quantized=near,
        scale=scale,
    )
    return made, exact, near, labels


def classes_last(array):
    return torch.from_numpy(np.moveaxis(array, 1, -1) if array.ndim == 4 else array).double()


def class_count(array):
    return array.shape[1] if array.ndim == 4 else array.shape[-1]


def by_torch(metric, exact, near, labels):
    r, y = (classes_last(a).reshape(len(a), -1, class_count(a)) for a in (exact, near))
    own = torch.from_numpy(labels)
    match metric:
        case Metric.RELATIVE_ERROR:
            return float(((y - r) ** 2).sum() / (r**2).sum())
        case Metric.COSINE:
            return float((1 - functional.cosine_similarity(y, r, dim=-1)).mean())
        case Metric.DIVERGENCE:
            logs = functional.log_softmax(y, -1), functional.log_softmax(r, -1)
            return float(functional.kl_div(*logs, log_target=True, reduction="none").sum(-1).mean())
        case Metric.CROSS_ENTROPY:
            return float(functional.cross_entropy(y.flatten(0, 1), own.flatten()))
        case Metric.MARGIN:
            chosen = y.gather(-1, own[..., None])[..., 0]
            others = y.scatter(-1, own[..., None], -torch.inf)
            return float((chosen - others.max(-1).values).mean())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("metric", list(Metric))
def test_measures_agree_with_torch(metric, shape):
    made, exact, near, labels = target(metric, shape)
    got = measure(made, near)
    assert got.values.sum() / got.weights.sum() == pytest.approx(
        by_torch(metric, exact, near, labels), rel=1e-9
    )


def run_piece(targets, outputs):
    emitter = Emitter("metric/")
    total = emit_metric(emitter, targets)
    feeds = dict(outputs)
    for name, each in targets.items():
        feeds |= each.feeds(name)
    graph = helper.make_graph(
        emitter.nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in feeds.items()],
        [helper.make_tensor_value_info(total, TensorProto.FLOAT, [])],
        emitter.initializers(),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return float(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)[0])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("metric", list(Metric))
@pytest.mark.parametrize("probability", [False, True])
def test_graph_pieces_move_as_the_measures_do(metric, shape, probability):
    if probability and (len(shape) == 4 or not metric.needs_classes):
        pytest.skip("a softmax over the last axis")
    made, exact, near, _ = target(metric, shape, probability=probability, scale=0.25)
    moved = run_piece({"y": made}, {"y": near}) - run_piece({"y": made}, {"y": exact})
    want = measure(made, near).values.sum() - measure(made, exact).values.sum()
    assert moved == pytest.approx(want, rel=2e-4, abs=1e-5)


def test_several_outputs_are_summed():
    a, b = target(Metric.COSINE, (4, 6)), target(Metric.COSINE, (4, 3, 5), seed=7)
    total = run_piece({"a": a[0], "b": b[0]}, {"a": a[2], "b": b[2]})
    want = measure(a[0], a[2]).values.sum() + measure(b[0], b[2]).values.sum()
    assert total == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("metric", [m for m in Metric if m is not Metric.RELATIVE_ERROR])
def test_rows_of_weight_zero_do_not_count(metric):
    exact, near = arrays((3, 4, 6))
    layout = Layout.of("y", exact.shape, 3)
    weight = np.array([[1.0, 1, 1, 0]] * 3)
    labels = np.zeros((3, 4), np.int64)

    def value(output):
        made = metric_target(
            metric,
            layout,
            exact,
            is_probability=False,
            row_weight=weight,
            labels=labels,
            quantized=near,
        )
        got = measure(made, output)
        return got.values.sum() / got.weights.sum()

    changed = near.copy()
    changed[:, 3] += 5
    assert value(changed) == value(near)
    changed[:, 2, 0] += 5
    assert value(changed) != value(near)


def test_cosine_of_nearly_equal_vectors_does_not_cancel():
    exact = np.random.default_rng(0).standard_normal((1, 384)).astype(np.float32)
    near = exact * (1 + 1e-4 * np.sign(np.random.default_rng(1).standard_normal((1, 384))))
    layout = Layout.of("y", exact.shape, 1)
    made = metric_target(
        Metric.COSINE, layout, exact, is_probability=False, row_weight=None, labels=None
    )
    got = run_piece({"y": made}, {"y": near.astype(np.float32)})
    assert got == pytest.approx(measure(made, near.astype(np.float32)).values[0], rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "samples", "rows"),
    [
        ((5, 7), 5, (5, 1, 7)),
        ((5,), 5, (5, 1, 1)),
        ((10,), 1, (1, 1, 10)),
        ((), 1, (1, 1, 1)),
        ((6, 9), 2, (2, 3, 9)),
        ((2, 4, 3, 5), 2, (2, 15, 4)),
    ],
)
def test_layouts(shape, samples, rows):
    assert Layout.of("y", shape, samples).rows == rows


def test_refusals():
    with pytest.raises(OutputNotComparable, match="does not count the samples"):
        Layout.of("y", (5, 7), 3)
    layout = Layout.of("y", (4, 1), 4)
    nothing = {"is_probability": False, "row_weight": None}
    with pytest.raises(OutputNotComparable, match="needs classes"):
        metric_target(Metric.DIVERGENCE, layout, np.zeros((4, 1)), labels=None, **nothing)
    with pytest.raises(OutputNotComparable, match="cosine of single numbers says nothing"):
        metric_target(Metric.COSINE, layout, np.zeros((4, 1)), labels=None, **nothing)
    layout = Layout.of("y", (4, 3), 4)
    with pytest.raises(DataMismatch, match="needs labels"):
        metric_target(Metric.CROSS_ENTROPY, layout, np.zeros((4, 3)), labels=None, **nothing)
    with pytest.raises(DataMismatch, match="names no class"):
        labels = np.array([0, 1, 2, 3])
        metric_target(Metric.CROSS_ENTROPY, layout, np.zeros((4, 3)), labels=labels, **nothing)
