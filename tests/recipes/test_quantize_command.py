"""The command: what it prints, what it refuses, what it leaves on disk."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.models.branches import branches_int8
from tests.models.digits import images, residual_network
from tests.surgery import nets

from foldmark.cli.main import run
from foldmark.recipes.quantize import quantize_model
from foldmark.recipes.recipe import Override, Recipe
from foldmark.recipes.recipe_file import parse_recipe
from foldmark.recipes.save import save_model
from foldmark.runtimes.profile import execute


@pytest.fixture
def folder(tmp_path):
    onnx.save(nets.matmul(nets.random(32, 16)), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **nets.samples(nets.matmul(nets.random(32, 16))))
    return tmp_path


def quantize(folder, *more, data=True):
    given = ["--data", str(folder / "d.npz")] if data else []
    out = ["-o", str(folder / "q.onnx")]
    return run(["quantize", str(folder / "m.onnx"), *out, *given, *more])


def nothing_left(folder):
    return sorted(path.name for path in folder.iterdir()) == ["d.npz", "m.onnx"]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--mode", "dynamic"],
        ["--recipe", "weight-only-4", "--block-size", "16"],
        ["--mode", "weight-only", "--bits", "8"],
        ["--mode", "float16"],
        ["--observer", "mse", "--symmetric", "--activations", "int8", "--per-tensor"],
    ],
)
def test_modes(folder, capsys, options):
    assert quantize(folder, *options) == 0
    out = capsys.readouterr().out
    assert out.startswith("1 operator quantized")
    assert max(map(len, out.splitlines())) <= 80
    made = onnx.load(folder / "q.onnx")
    (entry,) = [each for each in made.metadata_props if each.key == "foldmark.recipe"]
    assert parse_recipe(entry.value, "r.toml")


def test_the_report_as_json(folder, capsys):
    assert quantize(folder, "--json", "-") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "foldmark.quantize/1"
    assert [each["operator"] for each in found["quantized"]] == ["MatMul"]
    assert found["bytes"] == sum(Path(each).stat().st_size for each in found["files"])
    assert found["float_bytes"] == (folder / "m.onnx").stat().st_size
    assert parse_recipe(found["recipe"], "r.toml")


def test_the_report_does_not_overwrite_the_model(folder, capsys):
    assert quantize(folder, "--json", str(folder / "q.onnx")) == 2
    assert "another of the command's files" in capsys.readouterr().err
    assert nothing_left(folder)


def test_the_calibration_as_json(folder, capsys):
    data, ranges = str(folder / "d.npz"), folder / "r.json"
    words = ["calibrate", str(folder / "m.onnx"), "--data", data, "-o", str(ranges)]
    assert run([*words, "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "foldmark.calibrate/1"
    (x,) = [each for each in found["ranges"] if each["tensor"] == "x"]
    values = np.load(data)["x"]
    assert (x["low"], x["high"], x["values"]) == (values.min(), values.max(), values.size)
    assert found["remarks"]
    assert ranges.is_file()


def test_ranges_of_an_earlier_run(folder):
    ranges = str(folder / "r.json")
    data = str(folder / "d.npz")
    assert run(["calibrate", str(folder / "m.onnx"), "--data", data, "-o", ranges]) == 0
    assert quantize(folder, "--ranges", ranges, data=False) == 0
    first = (folder / "q.onnx").read_bytes()
    assert quantize(folder, "--force") == 0
    assert (folder / "q.onnx").read_bytes() == first


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--exclude", "product"], "nothing here was quantized"),
        (["--exclude", "nowhere"], "matches no operator"),
        (["--recipe", "nowhere"], "no such recipe"),
        (["--rule", "NOWHERE"], "no such rule"),
        (["--rule", "GGML_Q4_0"], "int8 weights with zero point 0"),
        (["--bits", "4"], "no integer kernel takes 4-bit"),
        (["--mode", "weight-only", "--block-size", "20"], "no such block size"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(folder, capsys, options, words):
    assert quantize(folder, *options) == 2
    err = capsys.readouterr().err
    assert words in err
    assert len(err.splitlines()) == 1
    assert nothing_left(folder)


def test_static_without_data(folder, capsys):
    assert quantize(folder, data=False) == 2
    said = capsys.readouterr().err
    for words in ("needs data", "samples of x float32[n, 32]", "random:64"):
        assert words in said
    assert nothing_left(folder)


def test_an_existing_output_is_kept(folder, capsys):
    (folder / "q.onnx").write_text("mine")
    assert quantize(folder) == 2
    assert "--force" in capsys.readouterr().err
    assert (folder / "q.onnx").read_text() == "mine"


def test_a_quantized_model_is_refused(folder, capsys):
    assert quantize(folder) == 0
    out = str(folder / "again.onnx")
    assert run(["quantize", str(folder / "q.onnx"), "-o", out]) == 2
    assert "already quantized" in capsys.readouterr().err


def test_data_with_nan(folder, capsys):
    x = nets.samples(nets.matmul(nets.random(32, 16)))["x"]
    x[3, 4] = np.nan
    np.savez(folder / "d.npz", x=x)
    assert quantize(folder) == 2
    assert "x" in capsys.readouterr().err
    assert nothing_left(folder)


def test_a_weight_that_is_not_finite(folder, capsys):
    weight = nets.random(32, 16)
    weight[2, 3] = np.inf
    onnx.save(nets.matmul(weight), folder / "m.onnx")
    assert quantize(folder, "--mode", "dynamic") == 2
    assert "[2, 3]" in capsys.readouterr().err


@pytest.mark.parametrize("fault", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_full_disk_and_an_interruption_leave_nothing(folder, monkeypatch, capsys, fault):
    def fail(self, data):
        raise fault

    monkeypatch.setattr(Path, "write_bytes", fail)
    assert quantize(folder) in (2, 130)
    assert nothing_left(folder)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


MOMENTS = [
    "foldmark.runtimes.onnxruntime.Session.run",
    "foldmark.surgery.weights.coded",
    "foldmark.formats.onnx_writer.fits_inside",
    "foldmark.recipes.save.Session",
    "pathlib.Path.replace",
]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("command", ["quantize", "calibrate"])
def test_an_interruption_at_any_moment_leaves_nothing(folder, monkeypatch, capsys, moment, command):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(moment, interrupt)
    out = ["-o", str(folder / "q.onnx"), "--data", str(folder / "d.npz")]
    code = run([command, str(folder / "m.onnx"), *out])
    if code == 0:  # a moment that this command has not
        assert command == "calibrate"
        return
    assert code == 130
    assert nothing_left(folder)
    assert "interrupted; nothing half written" in capsys.readouterr().err


LIMITED = """
import resource, sys
from foldmark.cli.main import run
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
@pytest.mark.parametrize("command", ["quantize", "calibrate"])
def test_a_file_that_the_system_cuts_short_leaves_nothing(folder, command):
    """The system itself refuses the bytes beyond a limit, as a full disk does."""
    out = ["-o", str(folder / "q.onnx"), "--data", str(folder / "d.npz")]
    # -B: bytecode cut at the limit would stay beside the sources and break every later import.
    done = subprocess.run(
        [sys.executable, "-B", "-c", LIMITED, command, str(folder / "m.onnx"), *out],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    assert "can't be written; got file too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert nothing_left(folder)


def test_the_model_itself_is_never_the_output(folder, capsys):
    model = str(folder / "m.onnx")
    before = (folder / "m.onnx").read_bytes()
    data = ["--data", str(folder / "d.npz")]
    assert run(["quantize", model, "-o", model, "--force", *data]) == 2
    assert "the float model itself" in capsys.readouterr().err
    assert (folder / "m.onnx").read_bytes() == before


def test_a_range_of_zero_is_said(folder, capsys):
    np.savez(folder / "d.npz", x=np.zeros((8, 32), np.float32))
    assert quantize(folder) == 0
    assert "x: zero in all samples" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (nets.conv_transpose(3, 8, 1), []),
        (nets.conv(), ["--activations", "uint16"]),
        (nets.matmul(nets.random(32, 16)), ["--activations", "int16"]),
    ],
    ids=["ConvTranspose", "uint16", "int16"],
)
def test_operators_without_an_integer_kernel_are_named(folder, capsys, model, options):
    onnx.save(model, folder / "m.onnx")
    feeds = nets.samples(model)
    np.savez(folder / "d.npz", **feeds)
    assert quantize(folder, *options) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "ONNX Runtime has no integer kernel for" in out
    # And it is true of what ONNX Runtime makes of the model.
    ran = execute(onnx.load(folder / "q.onnx"), feeds)
    operators = [node.op_type for node in ran.graph.graph.node]
    assert "DequantizeLinear" in operators
    assert not any("QLinear" in each or "Integer" in each for each in operators)


def coded_by_cast():
    codes = np.ones((32, 16), np.int8)
    nodes = [
        onnx.helper.make_node("Cast", ["c"], ["f"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["f", "s"], ["w"]),
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    return nets.net(nodes, {"c": codes, "s": np.float32(0.1)}, ("n", 32))


@pytest.mark.parametrize("make", [coded_by_cast, lambda: onnx.load(branches_int8())])
def test_models_quantized_in_unusual_places_are_refused(folder, capsys, make):
    onnx.save(make(), folder / "m.onnx")
    assert quantize(folder, "--mode", "dynamic") == 2
    assert "already quantized" in capsys.readouterr().err
    assert nothing_left(folder)


def test_weights_too_large_for_one_file_lie_beside_it(folder, monkeypatch):
    made = quantize_model(
        nets.matmul(nets.random(64, 64)), Recipe(), nets.samples(nets.matmul(nets.random(64, 64)))
    )
    monkeypatch.setattr("foldmark.formats.onnx_writer._INLINE", 100)
    save_model(made.model, folder / "big.onnx")
    assert (folder / "big.onnx.data").stat().st_size >= 64 * 64
    assert onnx.load(folder / "big.onnx")


def test_show_recipe(folder, capsys):
    assert quantize(folder, "--show-recipe", "--activations", "int8") == 0
    assert 'activations = "int8"' in capsys.readouterr().out
    assert nothing_left(folder)


def test_a_real_network(tmp_path, capsys):
    np.savez(tmp_path / "d.npz", image=images()[0][:32])
    out = str(tmp_path / "q.onnx")
    data = str(tmp_path / "d.npz")
    assert run(["quantize", str(residual_network()), "-o", out, "--data", data]) == 0
    assert "Conv: int8 per channel, uint8 activations" in capsys.readouterr().out


def test_overrides_that_match_nothing():
    model = nets.matmul(nets.random(32, 16))
    recipe = Recipe(overrides=(Override("nowhere", per_channel=False),))
    with pytest.raises(Exception, match="matches no operator"):
        quantize_model(model, recipe, nets.samples(model))
