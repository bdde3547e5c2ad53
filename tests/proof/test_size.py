"""The byte account sums to the file, and every byte has the right role."""

import numpy as np
import onnx
import pytest
from tests.proof import small

from foldmark.proof.size import Role, account_of

MODELS = [
    small.float_matmul, small.dynamic_matmul, small.cast_decoded_matmul, small.weight_only_matmul,
    small.qdq_matmul, small.conv,
]  # fmt: skip


@pytest.mark.parametrize("build", MODELS)
def test_sums_to_the_file(build, tmp_path):
    path = small.saved(build(), tmp_path / "m.onnx")
    account = account_of(path)
    assert sum(each.size for each in account.lines) == account.total == path.stat().st_size
    assert sum(each.size for each in account.kept_float) == account.of(Role.FLOATS)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (small.float_matmul, (0, 0, 0, 4 * 64 * 32)),
        (small.dynamic_matmul, (64 * 32, 4, 0, 0)),
        (small.cast_decoded_matmul, (64 * 32, 4, 0, 0)),
        (small.qdq_matmul, (64 * 32, 8 + 4 * 32, 2 + 32, 0)),
        (small.conv, (8 * 4 * 9, 12, 1, 0)),
    ],
)
def test_roles(build, expected, tmp_path):
    path = small.saved(build(), tmp_path / "m.onnx")
    account = account_of(path)
    roles = (Role.CODES, Role.SCALES, Role.ZERO_POINTS, Role.FLOATS)
    assert tuple(account.of(role) for role in roles) == expected


def test_external_data_counts(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(
        small.float_matmul(), path, save_as_external_data=True, location="w.bin", size_threshold=0
    )
    account = account_of(path)
    assert account.total == path.stat().st_size + (tmp_path / "w.bin").stat().st_size
    assert account.of(Role.FLOATS) == 4 * 64 * 32
    assert sum(each.size for each in account.lines) == account.total


def test_values_outside_raw_data_count(tmp_path):
    built = small.float_matmul()
    tensor = built.graph.initializer[0]
    values = np.frombuffer(tensor.raw_data, np.float32)
    tensor.ClearField("raw_data")
    tensor.float_data.extend(values)
    path = small.saved(built, tmp_path / "m.onnx")
    account = account_of(path)
    assert sum(each.size for each in account.lines) == path.stat().st_size
    assert 4 * 64 * 32 <= account.of(Role.FLOATS) <= 4 * 64 * 32 + 8


@pytest.mark.parametrize(
    ("node", "name", "reason"),
    [
        (("Gather", ["w", "i"]), "w", "Gather"),
        (("MatMul", ["x", "w"]), "w", "weights of MatMul"),
    ],
)
def test_reason_for_float(node, name, reason, tmp_path):
    operator, inputs = node
    stored = {"w": small.weight()} | ({"i": np.arange(3)} if "i" in inputs else {})
    built = small.model([small.helper.make_node(operator, inputs, ["y"], "n")], stored)
    path = small.saved(built, tmp_path / "m.onnx")
    (kept,) = account_of(path).kept_float
    assert kept.largest == name
    assert reason in kept.reason
