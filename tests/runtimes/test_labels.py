"""Labels in a file of their own: what is read, and what is refused in the file's name."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from foldmark.errors import DataMismatch, FileUnreadable
from foldmark.runtimes.batches import open_data
from foldmark.runtimes.labels import read_labels

X = np.zeros((7, 3), np.float32)
MODEL = helper.make_model(
    helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
)


def saved(folder, name, *arrays, **named):
    path = folder / name
    (np.savez if path.suffix == ".npz" else np.save)(path, *arrays, **named)
    return path


def test_what_is_read(tmp_path):
    for path, size in (
        (saved(tmp_path, "l.npy", np.arange(3, dtype=np.int32)), 3),
        (saved(tmp_path, "one.npz", y=np.arange(4)), 4),
        (saved(tmp_path, "named.npz", x=np.zeros(2), labels=np.arange(5)), 5),
    ):
        assert np.array_equal(read_labels(path), np.arange(size))
    scores = saved(tmp_path, "scores.npy", np.array([0.5, 1.5], np.float32))  # of a task's score
    assert np.array_equal(read_labels(scores), [0.5, 1.5])


FILES = {
    "two.npz": ({"a": np.arange(2), "b": np.arange(2)}, "no labels here; got a, b; expected one"),
    "none.npz": ({}, "no labels here; got no array"),
    "words.npy": (np.array(["cat", "dog"]), "no labels here; got <U3"),
    "number.npy": (np.int64(3), "no labels here; got a single number"),
    "objects.npy": (np.array([{}], dtype=object), "not an array; got Object arrays"),
    "text.npy": (b"1\n2\n", "not an array; got a file of another kind. Write it with numpy.save"),
    "empty.npy": (b"", "not an array"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_labels(tmp_path, name):
    held, text = FILES[name]
    if isinstance(held, bytes):
        (tmp_path / name).write_bytes(held)
    elif isinstance(held, dict):
        saved(tmp_path, name, **held)
    else:
        saved(tmp_path, name, held)
    with pytest.raises(DataMismatch, match=text) as caught:
        read_labels(tmp_path / name)
    assert caught.value.where == str(tmp_path / name)
    assert "pickle.load" not in caught.value.sentence()


@pytest.mark.parametrize(
    ("name", "text"), [("absent.npy", "no such file"), (".", "this is a directory")]
)
def test_what_is_no_file(tmp_path, name, text):
    with pytest.raises(FileUnreadable, match=text):
        read_labels(tmp_path / name)


MISFITS = {
    "few": (np.arange(4), "fewer labels than samples; got 4 labels for 7 samples"),
    "many": (np.arange(9), "more labels than samples; got 9 labels for 7 samples"),
    "real": (np.arange(7) * 0.5, r"got labels of float64; .* Convert them with .astype"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_misfits_name_the_file_of_the_labels_and_not_that_of_the_data(tmp_path, misfit):
    labels, text = MISFITS[misfit]
    data, path = saved(tmp_path, "data.npz", x=X), saved(tmp_path, "truth.npy", labels)
    with pytest.raises(DataMismatch, match=text) as caught:
        assert open_data(data, MODEL, path).samples
    assert caught.value.where == str(path)
    with pytest.raises(DataMismatch, match=text) as caught:
        assert open_data(data, MODEL, labels).samples
    assert caught.value.where == "the labels given"


def test_a_part_of_the_samples_takes_a_part_of_the_labels():
    data = open_data({"x": X}, MODEL, np.arange(7), limit=5)
    assert [batch.labels.tolist() for batch in data.batches(9)] == [[0, 1, 2, 3, 4]]


def test_one_number_is_no_labels():
    with pytest.raises(DataMismatch, match="the labels given: no axis of samples"):
        open_data({"x": X}, MODEL, np.int64(3))
