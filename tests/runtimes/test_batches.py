"""Every form of data becomes the same batches; every fault one line that helps."""

import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader

from foldmark.errors import (
    BadInput,
    DataMismatch,
    FileUnreadable,
    FormatNotRecognised,
    NoData,
    NonFiniteValue,
)
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.sources import FunctionData, RandomData


def model(**inputs) -> onnx.ModelProto:
    """A model with the inputs given as name=(type, shape); its nodes do not matter here."""
    infos = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
    out = helper.make_tensor_value_info("y", infos[0].type.tensor_type.elem_type, None)
    node = helper.make_node("Identity", [infos[0].name], ["y"])
    return helper.make_model(helper.make_graph([node], "g", infos, [out]))


PAIR = model(x=(TensorProto.FLOAT, ["n", 3]), ids=(TensorProto.INT64, ["n", "t"]))
X = np.arange(21, dtype=np.float32).reshape(7, 3)
IDS = np.arange(14).reshape(7, 2)
ARRAYS = {"x": X, "ids": IDS}


class Reader(CalibrationDataReader):
    def __init__(self) -> None:
        self.samples = iter([{"x": X[:4], "ids": IDS[:4]}, {"x": X[4:], "ids": IDS[4:]}])

    def get_next(self):
        return next(self.samples, None)


def rows():
    return [{"x": X[i : i + 1], "ids": IDS[i : i + 1]} for i in range(7)]


def forms(folder: Path):
    np.savez(folder / "all.npz", **ARRAYS)
    parts = folder / "parts"
    parts.mkdir()
    np.savez(parts / "a.npz", x=X[:5], ids=IDS[:5])
    np.savez(parts / "b.npz", x=X[5:], ids=IDS[5:])
    code = folder / "mine.py"
    code.write_text(
        "import numpy as np\n"
        f"def load():\n    with np.load({str(folder / 'all.npz')!r}) as f:\n"
        "        for i in range(7):\n"
        "            yield {k: f[k][i:i+1] for k in f.files}\n"
    )
    return {
        "npz": folder / "all.npz",
        "text": str(folder / "all.npz"),
        "folder": parts,
        "function": FunctionData(code, "load"),
        "dict": ARRAYS,
        "dicts": rows(),
        "iterator": iter(rows()),
        "reader": Reader(),
        "callable": rows,
    }


@pytest.mark.parametrize(
    "form",
    ["npz", "text", "folder", "function", "dict", "dicts", "iterator", "reader", "callable"],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_every_form_gives_the_same_samples_twice(tmp_path, form, size):
    data = open_data(forms(tmp_path)[form], PAIR)
    for _ in range(2):
        batches = list(data.batches(size))
        assert max(b.samples for b in batches) <= max(size, 5)
        assert [b.first for b in batches] == list(
            np.cumsum([0, *[b.samples for b in batches]])[:-1]
        )
        assert np.array_equal(np.concatenate([b.feeds["x"] for b in batches]), X)
        assert np.array_equal(np.concatenate([b.feeds["ids"] for b in batches]), IDS)
    assert data.samples == 7
    assert not data.is_random


def test_single_rows_are_joined_into_batches():
    assert [b.samples for b in open_data(rows(), PAIR).batches(4)] == [4, 3]


def test_samples_of_different_lengths_run_apart():
    lengths = [np.zeros((1, n), np.int64) for n in (2, 2, 5, 5, 5, 2)]
    one = model(ids=(TensorProto.INT64, ["n", "t"]))
    batches = list(open_data([{"ids": a} for a in lengths], one).batches(8))
    assert [b.feeds["ids"].shape for b in batches] == [(2, 2), (3, 5), (1, 2)]


def test_limit_and_labels():
    labels = np.arange(7) % 3
    data = open_data(ARRAYS, PAIR, labels=labels, limit=5)
    batches = list(data.batches(2))
    assert np.array_equal(np.concatenate([b.labels for b in batches]), labels[:5])
    beside = open_data({**ARRAYS, "labels": labels}, PAIR)
    assert np.array_equal(np.concatenate([b.labels for b in beside.batches(3)]), labels)
    named = open_data({**ARRAYS, "digit": labels}, PAIR, label_name="digit")
    assert np.array_equal(next(iter(named.batches(9))).labels, labels)
    assert next(iter(open_data(ARRAYS, PAIR).batches(9))).labels is None


def test_labels_of_a_score_may_be_any_numbers():
    human = np.linspace(0, 5, 7)
    data = replace(open_data({**ARRAYS, "labels": human}, PAIR), label_kinds="iuf")
    assert np.array_equal(np.concatenate([b.labels for b in data.batches(3)]), human)
    assert next(iter(data.batches(3))).labels.dtype == np.float64


def test_what_needs_no_labels_does_not_look_at_them():
    data = open_data({**ARRAYS, "labels": np.array(["a"])}, PAIR).without_labels()
    assert [batch.samples for batch in data.batches(3)] == [3, 3, 1]
    assert all(batch.labels is None for batch in data.batches(3))


def test_labels_that_were_named_must_be_there():
    with pytest.raises(DataMismatch, match="no array named 'digit'"):
        list(open_data(ARRAYS, PAIR, label_name="digit").batches(3))


def test_fixed_batch_and_no_batch():
    fixed = model(x=(TensorProto.FLOAT, [2, 3]))
    assert [b.samples for b in open_data({"x": X[:6]}, fixed).batches(64)] == [2, 2, 2]
    with pytest.raises(DataMismatch, match="takes 2 samples at once"):
        list(open_data({"x": X}, fixed).batches(64))
    stacked = list(open_data({"x": X[:, None].repeat(2, 1)}, fixed).batches(64))
    assert [b.feeds["x"].shape for b in stacked] == [(2, 3)] * 7
    vector = model(x=(TensorProto.FLOAT, [3]))
    assert [b.feeds["x"].tolist() for b in open_data({"x": X}, vector).batches(4)] == X.tolist()


FAULTS = {
    "missing": ({"x": X}, DataMismatch, r"no array named 'ids'; got x; expected x float32\[n, 3\]"),
    "type": ({"x": X.astype(np.float64), "ids": IDS}, DataMismatch, "'x' has the wrong type"),
    "rank": ({"x": X, "ids": IDS[0]}, DataMismatch, "'ids' has the wrong rank"),
    "size": ({"x": X[:, :2], "ids": IDS}, DataMismatch, "axis 1 of input 'x'"),
    "counts": ({"x": X[:3], "ids": IDS}, DataMismatch, "x 3, ids 7"),
    "empty": ({"x": X[:0], "ids": IDS[:0]}, NoData, "no samples"),
    "none": ([], NoData, r"no samples; expected x float32\[n, 3\], ids int64\[n, t\]"),
    "not dicts": ([X], DataMismatch, "not a dict"),
    "ragged": (
        {"x": [[1.0, 2.0, 3.0], [1.0]], "ids": IDS},
        DataMismatch,
        r"'x' is no array; got rows of different lengths; expected x float32\[n, 3\]",
    ),
    "too many": (RandomData(10**20), BadInput, "do not fit into memory"),
    "strange": (3, DataMismatch, "not a form of data"),
    "absent": (None, NoData, r"arrays for x float32\[n, 3\], ids int64\[n, t\]\. Give an .npz"),
    "no file": ("nowhere.npz", FileUnreadable, "no such file"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_name_the_input_and_what_is_needed(fault):
    data, error, text = FAULTS[fault]
    with pytest.raises(error, match=text):
        list(open_data(data, PAIR).batches(4))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_first_bad_number_is_named(value):
    bad = X.copy()
    bad[4, 1] = bad[5, 0] = value
    with pytest.raises(NonFiniteValue, match=rf"'x' is not finite; got {value} at \(4, 1\)"):
        list(open_data({"x": bad, "ids": IDS}, PAIR).batches(4))


def test_files_that_are_not_arrays(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"PK not really")
    with pytest.raises(FormatNotRecognised, match=r"not an \.npz"):
        list(open_data(path, PAIR).batches(4))
    np.savez(path, x=np.array([{}], dtype=object), ids=IDS)
    with pytest.raises(FormatNotRecognised):
        list(open_data(path, PAIR).batches(4))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NoData, match=r"no \.npz"):
        open_data(tmp_path / "empty", PAIR)


def test_functions_that_fail_say_where(tmp_path):
    code = tmp_path / "mine.py"
    code.write_text("def load():\n    return [1 / 0]\n\ndef other(): ...\n")
    with pytest.raises(BadInput, match=r"mine.py:load: .*raised ZeroDivisionError"):
        list(open_data(FunctionData(code, "load"), PAIR).batches(4))
    with pytest.raises(DataMismatch, match="one of load, other"):
        open_data(FunctionData(code, "lod"), PAIR)
    code.write_text("import nothing_of_this_name\n")
    with pytest.raises(BadInput, match="ModuleNotFoundError"):
        open_data(FunctionData(code, "load"), PAIR)


def test_random_data_fits_the_model_and_is_marked():
    table = numpy_helper.from_array(np.zeros((5, 4), np.float32), "table")
    bert = helper.make_model(
        helper.make_graph(
            [helper.make_node("Gather", ["table", "input_ids"], ["y"])],
            "g",
            [
                helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "t"]),
                helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["n", "t"]),
                helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 3, "h", "w"]),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [table],
        )
    )
    data = open_data(RandomData(6), bert)
    (batch,) = data.batches(64)
    assert data.is_random
    assert "random:6" in data.description
    assert batch.samples == 6
    assert set(np.unique(batch.feeds["input_ids"])) == set(range(5))
    assert (batch.feeds["attention_mask"] == 1).all()
    assert abs(float(batch.feeds["pixels"].std()) - 1) < 0.1
    (again,) = open_data(RandomData(6), bert).batches(64)
    assert np.array_equal(batch.feeds["pixels"], again.feeds["pixels"])


def test_random_data_for_an_input_without_axes_is_one_number():
    branching = model(x=(TensorProto.FLOAT, [1, 3]), c=(TensorProto.BOOL, []))
    batches = list(open_data(RandomData(4), branching).batches(4))
    assert [batch.feeds["c"].shape for batch in batches] == [()] * 4
    assert batches[0].feeds["c"].dtype == bool


def test_counting_holds_a_few_samples_however_many_there_are():
    """Data of many small chunks: what was counted is let go."""
    alive: list[weakref.ref] = []
    most = 0

    def chunks():
        nonlocal most
        for number in range(500):
            x = np.full((1, 3), number, np.float32)
            alive.append(weakref.ref(x))
            yield {"x": x, "ids": IDS[:1], "labels": np.array([-number])}
            del x
            most = max(most, sum(each() is not None for each in alive))

    data = open_data(chunks, PAIR)
    assert data.samples == 500
    assert data.largest_label == 0
    assert most <= 2 * 64
    assert len(alive) == 500  # one pass for both
