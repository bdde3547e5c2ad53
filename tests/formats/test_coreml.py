"""Core ML packages against coremltools' own decompression."""

import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.formats.seeds import seed_files, write_files

from foldmark.cli.main import run
from foldmark.errors import FoldmarkError, HostileFile, MissingExtra, NotSupported
from foldmark.formats.opening import open_artefact

WEIGHTS = np.random.default_rng(20272).normal(0, 0.1, (64, 128)).astype(np.float32)


@pytest.fixture(scope="module")
def float_model() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import coremltools
        from coremltools.converters.mil import Builder

        target = coremltools.target.iOS18
        spec = Builder.TensorSpec(shape=(1, 128))

        @Builder.program(input_specs=[spec], opset_version=target)
        def program(x: Any) -> Any:
            return Builder.linear(x=x, weight=WEIGHTS, bias=np.zeros(64, np.float32), name="y")

        return coremltools.convert(
            program,
            convert_to="mlprogram",
            minimum_deployment_target=target,
            compute_precision=coremltools.precision.FLOAT32,
        )


def linear(**settings: object) -> Any:
    from coremltools.optimize.coreml import OpLinearQuantizerConfig, linear_quantize_weights

    return linear_quantize_weights, OpLinearQuantizerConfig(weight_threshold=0, **settings)


def palette(bits: int) -> Any:
    from coremltools.optimize.coreml import OpPalettizerConfig, palettize_weights

    return palettize_weights, OpPalettizerConfig(mode="uniform", nbits=bits, weight_threshold=0)


CASES = {
    "int8 rows": lambda: linear(mode="linear_symmetric", dtype="int8", granularity="per_channel"),
    "int8 tensor": lambda: linear(mode="linear_symmetric", dtype="int8", granularity="per_tensor"),
    "uint8 rows": lambda: linear(mode="linear", dtype="uint8", granularity="per_channel"),
    "int4 blocks": lambda: linear(
        mode="linear", dtype="int4", granularity="per_block", block_size=32
    ),
    "uint4 blocks": lambda: linear(
        mode="linear_symmetric", dtype="uint4", granularity="per_block", block_size=16
    ),
    **{f"{bits} bit palette": lambda bits=bits: palette(bits) for bits in (1, 2, 3, 4, 6, 8)},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
def test_against_the_tools_decompression(case: str, float_model: Any, tmp_path: Path) -> None:
    from coremltools.optimize.coreml import OptimizationConfig, decompress_weights

    compress, settings = CASES[case]()
    compressed = compress(float_model, OptimizationConfig(global_config=settings))
    compressed.save(str(tmp_path / "q.mlpackage"))
    decompress_weights(compressed).save(str(tmp_path / "f.mlpackage"))
    artefact = open_artefact(tmp_path / "q.mlpackage")
    (tensor,) = [t for t in artefact.tensors if t.layout.is_quantized]
    plain = max(open_artefact(tmp_path / "f.mlpackage").tensors, key=lambda t: t.elements)
    assert not plain.layout.is_quantized
    expected = plain.load().codes
    np.testing.assert_array_equal(tensor.load().dequantize(), expected)
    pieces = [values.dequantize() for _, values in tensor.pieces(600)]
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    kind = case.split(maxsplit=1)[0]
    assert tensor.layout.number_format == (f"uint{kind}" if "palette" in case else kind)
    assert artefact.header_bytes + sum(t.nbytes for t in artefact.tensors) <= artefact.size


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_files(tmp_path, seed_files("Core ML"))
    assert run(["inspect", str(path)]) == 0
    out = capfd.readouterr().out
    assert out.startswith("m.mlpackage (Core ML, ")
    assert "int4, groups of 8 along" in out
    assert "Core ML table" in out


@pytest.mark.parametrize("place", ["../x", "/etc/passwd", "", "a\0b", "x" * 5000, 3, None])
def test_manifests_that_lead_out(place: object, tmp_path: Path) -> None:
    path = write_files(tmp_path, seed_files("Core ML"))
    entry = {"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": place}}}
    (path / "Manifest.json").write_text(json.dumps(entry))
    with pytest.raises(FoldmarkError):
        open_artefact(path)


def test_weights_that_lead_out(tmp_path: Path) -> None:
    files = seed_files("Core ML")
    name = next(iter(files))
    for other in (b"@model_path/../ghts/weight.bin", b"/etc/path/weights/weights.bin/"):
        files[name] = files[name].replace(b"@model_path/weights/weight.bin", other)
        with pytest.raises(FoldmarkError):
            open_artefact(write_files(tmp_path, files))
        files = seed_files("Core ML")
    path = write_files(tmp_path, files)
    weights = path / "Data/com.apple.CoreML/weights/weight.bin"
    weights.unlink()
    weights.symlink_to("/etc/hostname")
    with pytest.raises(HostileFile, match="link out"):
        open_artefact(path)
    shutil.rmtree(path / "Data/com.apple.CoreML/weights")
    with pytest.raises(FoldmarkError):
        open_artefact(path)


def test_what_is_no_ml_program(tmp_path: Path) -> None:
    from coremltools.proto import Model_pb2

    files = seed_files("Core ML")
    model = Model_pb2.Model(specificationVersion=1)
    model.neuralNetwork.SetInParent()
    files[next(iter(files))] = model.SerializeToString()
    with pytest.raises(NotSupported, match="neuralNetwork"):
        open_artefact(write_files(tmp_path, files))
    (tmp_path / "m.mlmodel").write_bytes(b"\x08\x01")
    with pytest.raises(NotSupported, match="mlmodel"):
        open_artefact(tmp_path / "m.mlmodel")


def test_reading_does_not_import_the_whole_package(tmp_path: Path) -> None:
    """coremltools brings PyTorch with it, more memory than inspecting a file may take."""
    path = write_files(tmp_path, seed_files("Core ML"))
    code = (
        "import sys; from pathlib import Path; from foldmark.formats.opening import open_artefact; "
        "print(len(open_artefact(Path(sys.argv[1])).tensors)); "
        "print(*{'coremltools', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, check=True)
    assert done.stdout.split() == [b"3"]


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_files(tmp_path, seed_files("Core ML"))
    for name in [name for name in sys.modules if name.startswith("foldmark_coreml_messages")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "coremltools", None)
    with pytest.raises(MissingExtra, match=r"foldmark\[coreml\]"):
        open_artefact(path)
    monkeypatch.undo()
    assert len(open_artefact(path).tensors) == 3
