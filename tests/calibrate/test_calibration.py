"""Calibrating a model, its file and the command."""

import json

import numpy as np
import onnx
import pytest
from tests.models.branches import branches, samples
from tests.models.digits import images, residual_network

from foldmark.calibrate.calibration import Calibration, calibrate
from foldmark.calibrate.observers import Method, Observer, Range
from foldmark.calibrate.ranges_file import load_calibration, save_calibration
from foldmark.calibrate.remarks import remarks
from foldmark.calibrate.statistics import Channels, Detail, Statistics
from foldmark.cli.main import run
from foldmark.errors import DataMismatch, InvalidRecipe, NonFiniteValue
from foldmark.runtimes.batches import open_data


@pytest.fixture(scope="module")
def network():
    return onnx.load(residual_network())


def calibrated(network, count=64, start=0, **options):
    data = open_data({"image": images()[0][start : start + count]}, network)
    options = {"observer": Observer(Method.MSE)} | options
    return calibrate(network, data, **options)


def test_ranges_are_onnx_runtimes(network, tmp_path):
    from onnxruntime.quantization.calibrate import create_calibrator
    from tests.models.copies import Samples

    theirs = create_calibrator(
        residual_network(), augmented_model_path=str(tmp_path / "augmented.onnx")
    )
    theirs.collect_data(Samples({"image": images()[0][:64]}))
    limits = theirs.compute_data()
    found = calibrated(network).ranges(Observer())
    assert len(found) >= 12
    for name, each in found.items():
        low, high = (float(np.ravel(end)[0]) for end in limits[name].range_value)
        assert each.low == pytest.approx(min(low, 0), abs=1e-4)
        assert each.high == pytest.approx(high, abs=1e-4)


def test_batches_do_not_matter(network):
    one, other = calibrated(network, batch_size=8), calibrated(network, batch_size=5)
    for name, each in one.ranges(Observer()).items():
        assert other.ranges(Observer())[name].high == pytest.approx(each.high, rel=1e-4)


def test_file_and_merge(network, tmp_path):
    whole = calibrated(network, 64)
    first, second = calibrated(network, 32), calibrated(network, 32, start=32)
    save_calibration(second, tmp_path / "second.json", Observer())
    read = load_calibration(tmp_path / "second.json")
    read.merge(first)
    for observer in (Observer(), Observer(Method.PERCENTILE), Observer(Method.MSE)):
        assert read.ranges(observer) == whole.ranges(observer)
    assert (read.samples, read.batches) == (64, 8)


def test_only_runs_over_the_same_tensors_merge(network):
    first = calibrated(network, 8)
    second = calibrated(network, 8, tensors=list(first.tensors)[:2])
    with pytest.raises(DataMismatch, match="same tensors"):
        first.merge(second)


def test_unknown_tensor(network):
    with pytest.raises(InvalidRecipe, match="'nowhere'"):
        calibrated(network, 8, tensors=["nowhere"])


def test_infinity_inside_the_model_is_named(network):
    broken = onnx.ModelProto()
    broken.CopyFrom(network)
    stem = next(n for n in broken.graph.node if n.op_type == "Conv")
    weight = next(t for t in broken.graph.initializer if t.name == stem.input[1])
    array = onnx.numpy_helper.to_array(weight).copy()
    array.flat[0] = np.inf
    weight.CopyFrom(onnx.numpy_helper.from_array(array, weight.name))
    with pytest.raises(NonFiniteValue, match="batch 0"):
        calibrated(broken, 8)


def test_ends_taken_inside_the_graph_are_those_of_the_values(network):
    ends = calibrated(network, detail=Detail.ENDS)
    whole = calibrated(network)
    assert ends.settled_after == whole.settled_after
    for name, each in whole.tensors.items():
        mine = ends.tensors[name]
        assert (mine.batches, mine.values) == (each.batches, each.values)
        assert (mine.minimum, mine.maximum) == pytest.approx((each.minimum, each.maximum))
        assert mine.average_maximum == pytest.approx(each.average_maximum)


def product_of_inputs():
    node = onnx.helper.make_node("Mul", ["a", "b"], ["c"])
    product = onnx.helper.make_node("MatMul", ["c", "w"], ["y"])
    weight = onnx.numpy_helper.from_array(np.ones((40, 2), np.float32), "w")
    value = onnx.helper.make_tensor_value_info
    inputs = [value(name, onnx.TensorProto.FLOAT, ["n", 40]) for name in "ab"]
    output = [value("y", onnx.TensorProto.FLOAT, ["n", 2])]
    graph = onnx.helper.make_graph([node, product], "g", inputs, output, [weight])
    opset = onnx.helper.make_opsetid("", 17)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)


@pytest.mark.parametrize("place", [0, 1, 7, 17, 39, 59])
@pytest.mark.parametrize(("value", "word"), [(0.0, "NaN"), (1e38, "infinity")])
@pytest.mark.parametrize("detail", list(Detail))
def test_one_value_that_is_not_finite_is_found_wherever_it_stands(detail, value, word, place):
    """Infinity times zero is NaN, which the runtime's own minimum passes over."""
    model = product_of_inputs()
    one, other = np.ones((20, 40), np.float32), np.ones((20, 40), np.float32)
    with np.errstate(over="ignore"):
        one[12].flat[place % 40], other[12].flat[place % 40] = 1e38, 100
    data = open_data({"a": one, "b": other}, model)
    if value == 0.0:
        model.graph.node.insert(1, onnx.helper.make_node("Sub", ["c", "c"], ["d"]))
        model.graph.node[2].input[0] = "d"
    wanted = "d" if value == 0.0 else "c"
    with pytest.raises(NonFiniteValue, match=f"'{wanted}', batch 3: .* gives {word}"):
        calibrate(model, data, tensors=[wanted], detail=detail, batch_size=4)


def test_values_too_large_to_be_summed_are_not_called_infinite():
    model = product_of_inputs()
    full = np.full((4, 40), 3e37, np.float32)
    found = calibrate(model, open_data({"a": full, "b": full * 0 + 1}, model), tensors=["c"])
    assert found.tensors["c"].maximum == pytest.approx(3e37)


def test_branches_that_no_sample_took_are_named():
    model = onnx.load(branches())
    found = calibrate(model, open_data(samples(4), model), batch_size=4)
    assert found.unseen
    assert any("no sample took" in line for line in remarks(found, Observer()))
    assert not calibrate(model, open_data(samples(64), model), batch_size=4).unseen


def test_an_option_that_changes_nothing_is_said(network):
    found = calibrated(network)
    same, count = found.unchanged(Observer(Method.PERCENTILE, percentile=100))
    assert same == count
    text = " ".join(remarks(found, Observer(Method.PERCENTILE, percentile=100)))
    assert f"percentile gave min-max on {count} of {count} tensors" in text


def test_held_out_values_that_leave(network):
    found, held = calibrated(network, 16), calibrated(network, 200, start=400)
    held_max = {name: each.maximum for name, each in held.tensors.items()}
    leaving = dict(found.outside(held, Observer()))
    for name, share in leaving.items():
        if share > 0:
            assert held_max[name] > found.tensors[name].maximum or (
                held.tensors[name].minimum < found.tensors[name].minimum
            )
    assert any(share > 0 for share in leaving.values())


def command(tmp_path, *more, count=32):
    np.savez(tmp_path / "d.npz", image=images()[0][:count])
    out = str(tmp_path / "r.json")
    return run(
        ["calibrate", str(residual_network()), "--data", str(tmp_path / "d.npz"), "-o", out, *more]
    )


def test_command(tmp_path, capsys):
    assert command(tmp_path, "--observer", "mse", "--held-out", str(tmp_path / "d.npz")) == 0
    out = capsys.readouterr().out
    assert "ranges from 32 samples" in out
    assert max(map(len, out.splitlines()[1:])) <= 80
    document = json.loads((tmp_path / "r.json").read_text())
    assert document["schema"] == "foldmark.ranges/1"
    tensor = next(iter(document["tensors"].values()))
    assert Range(tensor["low"], tensor["high"])
    assert command(tmp_path, "--force", "--merge", str(tmp_path / "r.json")) == 0
    assert load_calibration(tmp_path / "r.json").samples == 64


def test_channels_from_the_command_line_merge_and_are_read_again(tmp_path, capsys):
    assert command(tmp_path, "--channel-axis", "1", "--observer", "percentile", count=16) == 0
    first = load_calibration(tmp_path / "r.json")
    name, channels = next((n, c) for n, c in first.channels.items() if len(c.each) == 16)
    stored = json.loads((tmp_path / "r.json").read_text())["tensors"][name]["channels"]
    ranges = first.channel_ranges(Observer(Method.PERCENTILE))[name]
    assert stored["high"] == [each.high for each in ranges]
    assert max(stored["high"]) == pytest.approx(first.tensors[name].maximum, rel=0.1)
    again = ["--force", "--merge", str(tmp_path / "r.json"), "--channel-axis", "1"]
    assert command(tmp_path, *again, "--observer", "percentile", count=16) == 0
    both = load_calibration(tmp_path / "r.json").channels[name]
    assert [each.values for each in both.each] == [2 * each.values for each in channels.each]
    assert command(tmp_path, "--force", "--merge", str(tmp_path / "r.json"), count=16) == 2
    assert "same channels" in capsys.readouterr().err


def test_a_loud_channel_is_named():
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    x[:, 5] *= 50
    found = Channels(1, Detail.ENDS)
    found.update(x)
    whole = Statistics(Detail.ENDS)
    whole.update(x)
    calibration = Calibration({"h": whole}, 64, 1, 1, (), {"h": found})
    said = " ".join(remarks(calibration, Observer()))
    assert "h (channel 5, " in " ".join(said.split())


def test_an_existing_file_is_kept(tmp_path, capsys):
    (tmp_path / "r.json").write_text("mine")
    assert command(tmp_path) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "r.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not whole JSON"),
        ("{}", "not a file of ranges"),
        ('{"schema": "foldmark.ranges/1"}', "missing or damaged"),
    ],
)
def test_damaged_file(tmp_path, capsys, content, words):
    (tmp_path / "bad.json").write_text(content)
    assert command(tmp_path, "--merge", str(tmp_path / "bad.json")) == 2
    assert words in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_no_data(tmp_path, capsys):
    assert run(["calibrate", str(residual_network()), "-o", str(tmp_path / "r.json")]) == 2
    assert "image float32" in capsys.readouterr().err
