"""Which entry of the catalogue a recorded vector is put to, and how.

The table is in the order of the tools. A row is a pattern for the vector's id, the entry or
function it is put to, and what turns that function's result into an answer; the first row that
matches the whole id is taken.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from foldmark.compare.vectors import Answer, Vector, flat
from foldmark.errors import DataMismatch
from foldmark.exact.catalog import FLOAT32, INT8
from foldmark.exact.dot import INT32_WRAPPING
from foldmark.exact.packing import stream
from foldmark.exact.requantize import quantize_multiplier
from foldmark.exact.rule import Rule
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Operator, Procedure
from foldmark.exact.tools.fake_quantize import LevelRange, RangeWidth
from foldmark.exact.tools.huggingface import outlier_columns

__all__ = ["QUESTIONS", "Question", "question_for"]

Function = Callable[..., Any]
Ask = Callable[[Vector, Function], Answer]


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of vector.

    pattern   of the ids
    entry     the catalogue's entry, or the function, whose answer is asked for
    function  the name under which an engine offers the function to call
    ask       (vector, function) -> answer
    """

    pattern: str
    entry: str
    function: str
    ask: Ask


# What the first part of an id stands for: how the vector's tool is called.
_TOOLS: Final = {
    "aeq": "ai-edge-quantizer",
    "awq": "AutoAWQ",
    "bnb": "bitsandbytes",
    "coremltools": "coremltools",
    "ct": "compressed-tensors",
    "gemmlowp": "gemmlowp",
    "ggml": "ggml",
    "gptq": "GPTQ",
    "hqq": "HQQ",
    "inc": "Intel neural-compressor",
    "mlx": "mlx",
    "modelopt": "ModelOpt",
    "nncf": "NNCF",
    "openvino": "OpenVINO",
    "ort": "onnxruntime",
    "quanto": "optimum-quanto",
    "quark": "AMD Quark",
    "smoothquant": "SmoothQuant",
    "tflite": "TFLite",
    "torch": "torch",
    "torch2": "torch",
    "torchao": "torchao",
}


def question_for(vector: Vector) -> Question | None:
    """Return the question that a vector is an answer to; None for a tool nobody knows.

    The tool is known by the id, and by its name where the vector gives one.
    """
    if vector.tool and not _is_of(vector.tool, vector.id.partition(".")[0]):
        return None
    return next((q for q in QUESTIONS if re.fullmatch(q.pattern, vector.id)), None)


def _is_of(tool: str, prefix: str) -> bool:
    name = _TOOLS.get(prefix)
    return name is not None and re.match(rf"{re.escape(name)}\b", tool, re.IGNORECASE) is not None


def _numbers(vector: Vector) -> list[float]:
    return [vector.data.round(float(value)) for value in flat(vector.values)]


def _whole(pattern: str, name: str, sign_of_zero_point: int = 1) -> Question:
    """Ask for codes, scale and zero point of the group; some tools store minus the real zero."""
    entry = CATALOGUE[name]

    def ask(vector: Vector, function: Function) -> Answer:
        if isinstance(entry, Procedure):
            group = function(_numbers(vector), vector.data)
        else:
            group = function(_numbers(vector), entry, vector.data)
        return Answer(group.codes, [group.scale], [sign_of_zero_point * group.zero_point])

    return Question(pattern, name, name if isinstance(entry, Procedure) else "quantize_group", ask)


def _given(pattern: str, name: str) -> Question:
    """Ask for codes only, with the scale and zero point of the vector."""
    entry = CATALOGUE[name]
    assert isinstance(entry, Operator | Rule)

    def ask(vector: Vector, function: Function) -> Answer:
        scale, zero_point = flat(vector.scale)[0], flat(vector.zero_point)[0]
        return Answer(function(_numbers(vector), scale, zero_point, entry.affine, vector.data))

    return Question(pattern, name, "quantize", ask)


def _columns(pattern: str, name: str) -> Question:
    """Ask for every column of a matrix as a group of its own."""
    rule = CATALOGUE[name]

    def ask(vector: Vector, function: Function) -> Answer:
        columns = (
            [vector.data.round(v) for v in column] for column in zip(*vector.values, strict=True)
        )
        groups = [function(column, rule, vector.data) for column in columns]
        codes = [code for row in zip(*(g.codes for g in groups), strict=True) for code in row]
        return Answer(codes, [g.scale for g in groups], [g.zero_point for g in groups])

    return Question(pattern, name, "quantize_group", ask)


def _outlier_columns(pattern: str, name: str) -> Question:
    """Ask for rows whose outlying values are left out, their columns with them."""
    rule = CATALOGUE[name]

    def ask(vector: Vector, function: Function) -> Answer:
        threshold = float(_named(r"threshold=([0-9.]+)", vector.call)[1])
        outside = outlier_columns(vector.values, threshold)
        codes: list[int] = []
        scales: list[float] = []
        for row in vector.values:
            kept = [float(value) if abs(value) < threshold else 0.0 for value in row]
            group = function(kept, rule, vector.data)
            codes += [0 if i in outside else code for i, code in enumerate(group.codes)]
            scales.append(group.scale)
        return Answer(codes, scales, [0])

    return Question(pattern, name, "quantize_group", ask)


def _block_bytes(pattern: str, name: str, function: str) -> Question:
    """Ask for the bytes of a super block; the codes of the vector are these bytes."""
    return Question(pattern, name, function, lambda v, f: Answer(list(f(_numbers(v)).to_bytes())))


def _element_wise(pattern: str, function: str, *arguments: Any) -> Question:
    """Ask an integer function for each value of the vector."""
    return Question(
        pattern, function, function, lambda v, f: Answer([f(int(x), *arguments) for x in v.values])
    )


def _multiplied(vector: Vector, function: Function) -> Answer:
    """Multiply by the quantized multiplier that the call names."""
    multiplier = quantize_multiplier(float(_named(r"multiplier=([0-9.]+)", vector.call)[1]))
    return Answer([function(int(x), multiplier) for x in vector.values])


def _repeated_product(vector: Vector, function: Function) -> Answer:
    """Multiply two constant vectors of a given length."""
    a, b, count = (int(part) for part in vector.values)
    return Answer([function([a] * count, [b] * count, 0, 0, INT32_WRAPPING)])


def _requantized(vector: Vector, function: Function) -> Answer:
    zero_point, scale = int(flat(vector.zero_point)[0]), flat(vector.scale)[0]
    return Answer([function(int(x), scale, zero_point, INT8) for x in vector.values])


def _packed(vector: Vector, function: Function) -> Answer:
    packed = bytes(function([int(x) for x in vector.values], stream(4), 8))
    starts = range(0, len(packed), 4)
    return Answer([int.from_bytes(packed[s : s + 4], "little", signed=True) for s in starts])


def _fake_quantized(vector: Vector, function: Function) -> Answer:
    ends = _named(r"il=(-?[0-9.]+) ih=(-?[0-9.]+) levels=([0-9]+)", vector.call)
    level_range = LevelRange(float(ends[1]), float(ends[2]), int(ends[3]))
    return Answer([int(function(x, level_range)) for x in vector.values])


def _ranges(pattern: str, function: str, width: RangeWidth) -> Question:
    """Ask for the ends of each channel, low ones first, and the number of levels."""

    def ask(vector: Vector, function: Function) -> Answer:
        lows, highs = ([FLOAT32.round(v) for v in ends] for ends in vector.values)
        found = function(lows, highs, width)
        ends = [r.low for r in found] + [r.high for r in found]
        return Answer([found[0].levels], ends)

    return Question(pattern, function, function, ask)


def _named(pattern: str, call: str) -> re.Match[str]:
    found = re.match(pattern, call)
    if found is None:
        raise DataMismatch("the call does not say it", got=call, expected=pattern)
    return found


QUESTIONS: Final[Sequence[Question]] = (
    _whole(r"aeq\.int4\.asym\..*", "AI_EDGE_INT4_ASYMMETRIC"),
    _whole(r"aeq\.int4\.sym\..*", "AI_EDGE_INT4_SYMMETRIC"),
    _whole(r"aeq\.int8\.asym\..*", "AI_EDGE_INT8_ASYMMETRIC"),
    _whole(r"aeq\.int8\.sym\..*", "AI_EDGE_INT8_SYMMETRIC"),
    _whole(r"awq\.sym\..*", "AWQ_INT4_SYMMETRIC"),
    _whole(r"awq\.zp\..*", "AWQ_UINT4_ASYMMETRIC"),
    _whole(r"bnb\.int8_vectorwise\.(bfloat16|float16|float32)\..*", "BITSANDBYTES_INT8"),
    _outlier_columns(r"bnb\.int8_vectorwise\.threshold.*", "BITSANDBYTES_INT8"),
    _whole(r"bnb\.nf4\..*", "BITSANDBYTES_NF4_BLOCK"),
    _whole(r"bnb\.fp4\..*", "BITSANDBYTES_FP4_BLOCK"),
    _whole(r"coremltools\.int4\.linear\..*", "COREMLTOOLS_INT4_LINEAR"),
    _whole(r"coremltools\.int4\.linear_symmetric\..*", "COREMLTOOLS_INT4_SYMMETRIC"),
    _whole(r"coremltools\.int8\.linear\..*", "COREMLTOOLS_INT8_LINEAR"),
    _whole(r"coremltools\.int8\.linear_symmetric\..*", "COREMLTOOLS_INT8_SYMMETRIC"),
    _whole(r"coremltools\.uint4\.linear\..*", "COREMLTOOLS_UINT4_LINEAR"),
    _whole(r"coremltools\.uint4\.linear_symmetric\..*", "COREMLTOOLS_UINT4_SYMMETRIC"),
    _whole(r"coremltools\.uint8\.linear\..*", "COREMLTOOLS_UINT8_LINEAR"),
    _whole(r"coremltools\.uint8\.linear_symmetric\..*", "COREMLTOOLS_UINT8_SYMMETRIC"),
    _whole(r"ct\.int4\.asym\..*", "COMPRESSED_TENSORS_INT4_ASYMMETRIC"),
    _whole(r"ct\.int4\.sym\..*", "COMPRESSED_TENSORS_INT4_SYMMETRIC"),
    _whole(r"ct\.int8\.asym\..*", "COMPRESSED_TENSORS_INT8_ASYMMETRIC"),
    _whole(r"ct\.int8\.sym\..*", "COMPRESSED_TENSORS_INT8_SYMMETRIC"),
    _given(r"ct\.recip", "COMPRESSED_TENSORS_INT8_SYMMETRIC"),
    Question(r"ct\.pack_int4", "pack", "pack", _packed),
    _whole(r"ggml\.Q4_0\..*", "GGML_Q4_0"),
    _whole(r"ggml\.Q4_1\..*", "GGML_Q4_1"),
    _whole(r"ggml\.Q5_0\..*", "GGML_Q5_0"),
    _whole(r"ggml\.Q5_1\..*", "GGML_Q5_1"),
    _whole(r"ggml\.Q8_0\..*", "GGML_Q8_0"),
    _block_bytes(r"ggml\.Q4_K\..*", "GGML_Q4_K", "quantize_q4_k"),
    _block_bytes(r"ggml\.Q6_K\..*", "GGML_Q6_K", "quantize_q6_k"),
    _whole(r"gptq\.asym\.mse\..*", "GPTQ_UINT4_ASYMMETRIC_MSE"),
    _whole(r"gptq\.sym\.mse\..*", "GPTQ_UINT4_SYMMETRIC_MSE"),
    _whole(r"gptq\.asym\.(?!mse).*", "GPTQ_UINT4_ASYMMETRIC"),
    _whole(r"gptq\.sym\.(?!mse).*", "GPTQ_UINT4_SYMMETRIC"),
    _whole(r"hqq\.noopt\..*", "HQQ_4_UNOPTIMIZED"),
    _whole(r"hqq\.opt\..*", "HQQ_4"),
    _whole(r"inc\.asym4\..*", "INC_UINT4_ASYMMETRIC"),
    _whole(r"inc\.asym8\..*", "INC_UINT8_ASYMMETRIC"),
    _whole(r"inc\.sym4\.full\..*", "INC_INT4_FULL_RANGE"),
    _whole(r"inc\.sym4\..*", "INC_INT4_SYMMETRIC"),
    _whole(r"inc\.sym8\.full\..*", "INC_INT8_FULL_RANGE"),
    _whole(r"inc\.sym8\..*", "INC_INT8_SYMMETRIC"),
    _whole(r"mlx\.q4\..*", "MLX_AFFINE_4"),
    _whole(r"modelopt\.int8_fake\..*", "MODELOPT_FAKE_INT8"),
    _whole(r"modelopt\.onnx_int4\.sym\..*", "MODELOPT_ONNX_INT4"),
    _whole(r"modelopt\.onnx_int4\.zp\..*", "MODELOPT_ONNX_UINT4"),
    _whole(r"nncf\.INT4_ASYM\..*", "NNCF_UINT4_ASYMMETRIC"),
    _whole(r"nncf\.INT4_SYM\..*", "NNCF_INT4_SYMMETRIC"),
    _whole(r"nncf\.INT8_ASYM\..*", "NNCF_UINT8_ASYMMETRIC"),
    _whole(r"nncf\.INT8_SYM\..*", "NNCF_INT8_SYMMETRIC"),
    _ranges(r"nncf\.fq\.asymmetric\.narrowFalse\..*", "nncf_asymmetric_ranges", RangeWidth.FULL),
    _ranges(r"nncf\.fq\.asymmetric\.narrowTrue\..*", "nncf_asymmetric_ranges", RangeWidth.NARROW),
    _ranges(r"nncf\.fq\.symmetric\.narrowFalse\..*", "nncf_symmetric_ranges", RangeWidth.FULL),
    _ranges(r"nncf\.fq\.symmetric\.narrowTrue\..*", "nncf_symmetric_ranges", RangeWidth.NARROW),
    Question(
        r"openvino\.FakeQuantize\..*",
        "openvino_fake_quantize",
        "openvino_fake_quantize",
        _fake_quantized,
    ),
    Question(r"ort\.MatMulInteger\..*", "integer_dot", "integer_dot", _repeated_product),
    Question(r"ort\.QLinearMatMul\..*", "requantize_float", "requantize_float", _requantized),
    _whole(r"ort\.hqq\..*", "ONNXRUNTIME_HQQ_4"),
    _whole(r"ort\.kquant\..*", "ONNXRUNTIME_K_QUANT_4"),
    _whole(r"ort\.DynamicQuantizeLinear\..*", "ONNXRUNTIME_DYNAMIC_UINT8"),
    _given(
        r"ort\.QuantizeLinear\.(div_vs_recip.*|f..\.INT8\..*)", "ONNXRUNTIME_QUANTIZELINEAR_INT8"
    ),
    _given(r"ort\.QuantizeLinear\.f..\.UINT8\..*", "ONNXRUNTIME_QUANTIZELINEAR_UINT8"),
    _given(r"ort\.QuantizeLinear\.f..\.INT16\..*", "ONNXRUNTIME_QUANTIZELINEAR_INT16"),
    _given(r"ort\.QuantizeLinear\.f..\.INT4\..*", "ONNXRUNTIME_QUANTIZELINEAR_INT4"),
    _given(r"ort\.QuantizeLinear\.f..\.UINT4\..*", "ONNXRUNTIME_QUANTIZELINEAR_UINT4"),
    _given(r"ort\.recip\.QuantizeLinear", "ONNXRUNTIME_QUANTIZELINEAR_UINT8"),
    _whole(r"ort\.gather4\.asym\..*", "ONNXRUNTIME_GATHER_4_ASYMMETRIC"),
    _whole(r"ort\.gather4\.sym\..*", "ONNXRUNTIME_GATHER_4_SYMMETRIC"),
    _whole(r"ort\.matmulnbits\.QDQ4\.asym\..*", "ONNXRUNTIME_BLOCK_QDQ_4_ASYMMETRIC"),
    _whole(r"ort\.matmulnbits\.QDQ4\.sym\..*", "ONNXRUNTIME_BLOCK_QDQ_4_SYMMETRIC"),
    _whole(r"ort\.matmulnbits\.QOperator4\.asym\..*", "ONNXRUNTIME_MATMULNBITS_4_ASYMMETRIC"),
    _whole(r"ort\.matmulnbits\.QOperator4\.sym\..*", "ONNXRUNTIME_MATMULNBITS_4_SYMMETRIC"),
    _whole(r"ort\.matmulnbits\.QOperator8\.asym\..*", "ONNXRUNTIME_MATMULNBITS_8_ASYMMETRIC"),
    _whole(r"ort\.matmulnbits\.QOperator8\.sym\..*", "ONNXRUNTIME_MATMULNBITS_8_SYMMETRIC"),
    _whole(r"ort\.quantize_data\.INT16\.sym\..*", "ONNXRUNTIME_WEIGHT_INT16"),
    _whole(r"ort\.quantize_data\.INT4\.sym\..*", "ONNXRUNTIME_WEIGHT_INT4"),
    _whole(r"ort\.quantize_data\.INT8\.asym\..*", "ONNXRUNTIME_WEIGHT_INT8_ASYMMETRIC"),
    _whole(r"ort\.quantize_data\.INT8\.sym\.reduce\..*", "ONNXRUNTIME_WEIGHT_INT8_REDUCED"),
    _whole(r"ort\.quantize_data\.INT8\.sym\..*", "ONNXRUNTIME_WEIGHT_INT8"),
    _whole(r"ort\.quantize_data\.UINT4\.asym\..*", "ONNXRUNTIME_WEIGHT_UINT4"),
    _whole(r"ort\.quantize_data\.UINT8\.asym\.reduce\..*", "ONNXRUNTIME_WEIGHT_UINT8_REDUCED"),
    _whole(r"ort\.quantize_data\.UINT8\.asym\..*", "ONNXRUNTIME_WEIGHT_UINT8"),
    _whole(r"ort\.quantize_data\.UINT8\.sym\..*", "ONNXRUNTIME_WEIGHT_UINT8_SYMMETRIC"),
    _columns(r"ort\.quantize_dynamic\.per_channel=True", "ONNXRUNTIME_WEIGHT_INT8"),
    _columns(
        r"ort\.quantize_dynamic\.per_channel=True_weight_type=QUInt8", "ONNXRUNTIME_WEIGHT_UINT8"
    ),
    _whole(r"ort\.quantize_dynamic\.reduce_range=True", "ONNXRUNTIME_WEIGHT_INT8_REDUCED"),
    _whole(r"ort\.rtn\.asym\..*", "ONNXRUNTIME_RTN_4_ASYMMETRIC"),
    _whole(r"ort\.rtn\.sym\..*", "ONNXRUNTIME_RTN_4_SYMMETRIC"),
    _whole(r"quanto\.qint4\.shift\..*", "QUANTO_INT4_SHIFT", sign_of_zero_point=-1),
    _whole(r"quanto\.qint4\.zp\..*", "QUANTO_INT4_ZERO_POINT"),
    _whole(r"quanto\.qint8\..*", "QUANTO_INT8"),
    _whole(r"quark\.-128_127\.asym\..*", "QUARK_INT8_ASYMMETRIC"),
    _whole(r"quark\.-128_127\.sym\..*", "QUARK_INT8_SYMMETRIC"),
    _whole(r"quark\.-8_7\.sym\..*", "QUARK_INT4_SYMMETRIC"),
    _whole(r"quark\.0_15\.asym\..*", "QUARK_UINT4_ASYMMETRIC"),
    _whole(r"smoothquant\.w8\..*", "SMOOTHQUANT_INT8"),
    _element_wise(r"gemmlowp\.RDBP", "rounding_divide_by_power_of_two", 1),
    _element_wise(r"gemmlowp\.SRDHM", "saturating_rounding_doubling_high_multiply", 1 << 30),
    Question(
        r"tflite\.MBQM\..*",
        "multiply_by_quantized_multiplier",
        "multiply_by_quantized_multiplier",
        _multiplied,
    ),
    _whole(r"tflite\.PortableAsymmetricQuantizeFloats\..*", "TFLITE_HYBRID_INT8_ASYMMETRIC"),
    _whole(r"tflite\.PortableSymmetricQuantizeFloats\..*", "TFLITE_HYBRID_INT8_SYMMETRIC"),
    _whole(r"tflite\.converter\.per_channel\..*", "TFLITE_MLIR_WEIGHT_INT8"),
    _whole(r"torch\.choose_qparams_per_tensor\.full\..*", "TORCH_DYNAMIC_UINT8"),
    _whole(r"torch\.choose_qparams_per_tensor\.rr\..*", "TORCH_DYNAMIC_UINT8_REDUCED"),
    _whole(r"torch\.observer\.Histogram\..*", "TORCH_HISTOGRAM_UINT8"),
    _given(r"torch\.decomposed\..*", "TORCH_DECOMPOSED_INT8"),
    _given(r"torch\.fake_quantize_per_channel\..*", "TORCH_FAKE_QUANTIZE_PER_CHANNEL_INT8"),
    _given(r"torch\.fake_quantize_per_tensor\..*", "TORCH_FAKE_QUANTIZE_INT8"),
    _whole(
        r"torch\.observer\.MinMax\.(default0_127|quint8\.reduce)\..*",
        "TORCH_OBSERVER_UINT8_REDUCED",
    ),
    _whole(r"torch\.observer\.MinMax\.qint8\.neg127\..*", "TORCH_OBSERVER_INT8_NARROW"),
    _whole(r"torch\.observer\.MinMax\.qint8\.sym\.reduce\..*", "TORCH_OBSERVER_INT8_REDUCED"),
    _whole(r"torch\.observer\.MinMax\.qint8\.sym\..*", "TORCH_OBSERVER_INT8"),
    _whole(r"torch\.observer\.MinMax\.quint8\.sym\..*", "TORCH_OBSERVER_UINT8_SYMMETRIC"),
    _whole(r"torch\.observer\.(MinMax\.quint8\.affine|MovAvg\.quint8)\..*", "TORCH_OBSERVER_UINT8"),
    _given(
        r"(torch|torch2\.13\.0\+cpu)\.quantize_per_channel\.quint8\..*",
        "TORCH_2_13_PER_CHANNEL_UINT8",
    ),
    _given(
        r"(torch|torch2\.13\.0\+cpu)\.quantize_per_channel\.qint8\..*",
        "TORCH_2_13_PER_CHANNEL_INT8",
    ),
    _given(
        r"(torch|torch2\.13\.0\+cpu)\.quantize_per_tensor\.quint8\..*",
        "TORCH_2_13_PER_TENSOR_UINT8",
    ),
    _given(
        r"(torch|torch2\.13\.0\+cpu)\.quantize_per_tensor\.qint8\..*", "TORCH_2_13_PER_TENSOR_INT8"
    ),
    _given(r"torch\.recip\.decomposed_pt", "TORCH_DECOMPOSED_UINT8"),
    _given(r"torch\.recip\.fake_pc", "TORCH_FAKE_QUANTIZE_PER_CHANNEL_UINT8"),
    _given(r"torch\.recip\.fake_pt", "TORCH_FAKE_QUANTIZE_UINT8"),
    _given(r"torch\.recip\.per_channel", "TORCH_2_13_PER_CHANNEL_UINT8"),
    _given(r"(torch\.recip\.per_tensor|torch2\.13\.0\+cpu\.recip)", "TORCH_2_13_PER_TENSOR_UINT8"),
    _given(r"torch2\.1[24]\..*\.quantize_per_(channel|tensor)\.qint8\..*", "TORCH_QUANTIZE_INT8"),
    _given(
        r"torch2\.1[24]\..*\.(quantize_per_(channel|tensor)\.quint8\..*|recip)",
        "TORCH_QUANTIZE_UINT8",
    ),
    _whole(r"torchao\.ASYMMETRIC\.-128_127\..*", "TORCHAO_INT8_ASYMMETRIC"),
    _whole(r"torchao\.ASYMMETRIC\.-8_7\..*", "TORCHAO_INT4_ASYMMETRIC"),
    _whole(r"torchao\.Int8Tensor\..*", "TORCHAO_INT8_TENSOR"),
    _whole(r"torchao\.SYMMETRIC\.-128_127\..*", "TORCHAO_INT8_SYMMETRIC"),
    _whole(r"torchao\.SYMMETRIC\.-8_7\..*", "TORCHAO_INT4_SYMMETRIC"),
    _whole(r"torchao\.SYMMETRIC_NO_CLIPPING_ERR\.-128_127\..*", "TORCHAO_INT8_WITHOUT_CLIPPING"),
    _whole(r"torchao\.SYMMETRIC_NO_CLIPPING_ERR\.-8_7\..*", "TORCHAO_INT4_WITHOUT_CLIPPING"),
    _whole(r"torchao\.per_token_absmax\..*", "TORCHAO_PER_TOKEN_INT8"),
    _given(r"torchao\.recip", "TORCHAO_QUANTIZE_AFFINE_UINT8"),
    _whole(r"torchao\.tinygemm\..*", "TORCHAO_TINYGEMM_INT4"),
)
