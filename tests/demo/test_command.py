"""`foldmark demo`: the account closes, the right two tensors are blamed, the cure cures."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from foldmark.cli.main import run
from foldmark.errors import NotSupported
from foldmark.graphs.bypass import left_in_float
from foldmark.graphs.reading.read import read_quantized


@pytest.fixture(scope="module")
def printed() -> str:
    from click.testing import CliRunner

    from foldmark.cli.demo import command

    answer = CliRunner().invoke(command, catch_exceptions=False)
    assert answer.exit_code == 0
    return answer.output


def test_the_account_closes(printed: str) -> None:
    (left,) = re.findall(r"closes to ([-+][\d.e-]+)", printed)
    assert abs(float(left)) <= 1e-4


def test_the_masked_scores_are_blamed_and_the_mask_is_named(printed: str) -> None:
    first, second = re.findall(r"^\d\. (\S+): ", printed, re.MULTILINE)[:2]
    assert {first, second} == {"blocks.0/Add", "blocks.1/Add"}
    assert "-10,00" in printed


def test_the_cure_cures(printed: str) -> None:
    shares = [float(x) for x in re.findall(r"\d+ of 597\s+([\d.]+)%", printed)]
    exact, int8, cured = shares
    assert int8 < 50
    assert cured > exact - 1


def test_it_fits_80_columns(printed: str) -> None:
    assert max(map(len, printed.splitlines())) <= 80


def test_saved_files_are_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--save", str(tmp_path / "example")]) == 0
    assert "foldmark explain" in capsys.readouterr().out
    onnx.checker.check_model(str(tmp_path / "example" / "model.int8.onnx"))
    assert len(np.load(tmp_path / "example" / "labels.npy")) == 597
    assert run(["demo", "--save", str(tmp_path / "example")]) == 2


def test_weights_cannot_be_led_around() -> None:
    from tests.faults.planting import EXAMPLE

    exact, quantized = (onnx.load(EXAMPLE / name) for name in ("model.onnx", "model.int8.onnx"))
    sites = read_quantized(quantized, exact).sites
    weight = next(site for site in sites if site.codes is not None)
    with pytest.raises(NotSupported, match="can't be led around"):
        left_in_float(quantized, [weight])
