"""Which entry of the catalogue a recorded vector is put to, and how.

The table is in the order of the tools. A row is a pattern for the vector's id, and a function
that answers it; the first row that matches the whole id is taken.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from foldmark.compare.vectors import Answer, Engine, Vector, flat
from foldmark.exact.group import QuantizedGroup
from foldmark.exact.rule import Rule
from foldmark.exact.tools import CATALOGUE
from foldmark.exact.tools.entry import Operator, Procedure

__all__ = ["QUESTIONS", "Question", "question_for"]

Ask = Callable[[Vector, Engine], Answer]


@dataclass(frozen=True, slots=True)
class Question:
    """A kind of vector: its ids, the entry that it is put to, and how that is asked."""

    pattern: str
    entry: str
    ask: Ask


def question_for(vector: Vector) -> Question | None:
    """Return the question that a vector is an answer to; None for a tool nobody knows."""
    return next((q for q in QUESTIONS if re.fullmatch(q.pattern, vector.id)), None)


def _numbers(vector: Vector) -> list[float]:
    return [vector.data.round(float(value)) for value in flat(vector.values)]


def _answered(group: QuantizedGroup) -> Answer:
    return Answer(group.codes, [group.scale], [group.zero_point])


def _group(vector: Vector, engine: Engine, name: str) -> QuantizedGroup:
    entry = CATALOGUE[name]
    if isinstance(entry, Procedure):
        return entry.quantize(_numbers(vector), vector.data)
    assert isinstance(entry, Rule)
    return engine.quantize_group(_numbers(vector), entry, vector.data)


def _whole(pattern: str, name: str) -> Question:
    """Ask for codes, scale and zero point of the group."""
    return Question(pattern, name, lambda v, e: _answered(_group(v, e, name)))


def _shifted(pattern: str, name: str) -> Question:
    """Ask for the group; the tool stores the negative of the real zero point."""

    def ask(vector: Vector, engine: Engine) -> Answer:
        group = _group(vector, engine, name)
        return Answer(group.codes, [group.scale], [-group.zero_point])

    return Question(pattern, name, ask)


def _given(pattern: str, name: str) -> Question:
    """Ask for codes only, with the scale and zero point of the vector."""

    def ask(vector: Vector, engine: Engine) -> Answer:
        entry = CATALOGUE[name]
        assert isinstance(entry, Operator | Rule)
        scale, zero_point = flat(vector.scale)[0], flat(vector.zero_point)[0]
        return Answer(
            engine.quantize(_numbers(vector), scale, zero_point, entry.affine, vector.data)
        )

    return Question(pattern, name, ask)


def _columns(pattern: str, name: str) -> Question:
    """Ask for every column of a matrix as a group of its own."""

    def ask(vector: Vector, engine: Engine) -> Answer:
        rule = CATALOGUE[name]
        assert isinstance(rule, Rule)
        columns = [
            [vector.data.round(v) for v in column] for column in zip(*vector.values, strict=True)
        ]
        groups = [engine.quantize_group(column, rule, vector.data) for column in columns]
        codes = [code for row in zip(*(g.codes for g in groups), strict=True) for code in row]
        return Answer(codes, [g.scale for g in groups], [g.zero_point for g in groups])

    return Question(pattern, name, ask)


QUESTIONS: Final[Sequence[Question]] = (
    _whole(r"aeq\.int4\.asym\..*", "AI_EDGE_INT4_ASYMMETRIC"),
    _whole(r"aeq\.int4\.sym\..*", "AI_EDGE_INT4_SYMMETRIC"),
    _whole(r"aeq\.int8\.asym\..*", "AI_EDGE_INT8_ASYMMETRIC"),
    _whole(r"aeq\.int8\.sym\..*", "AI_EDGE_INT8_SYMMETRIC"),
    _whole(r"awq\.sym\..*", "AWQ_INT4_SYMMETRIC"),
    _whole(r"awq\.zp\..*", "AWQ_UINT4_ASYMMETRIC"),
    _whole(r"bnb\.int8_vectorwise\.(bfloat16|float16|float32)\..*", "BITSANDBYTES_INT8"),
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
    _whole(r"ggml\.Q4_0\..*", "GGML_Q4_0"),
    _whole(r"ggml\.Q4_1\..*", "GGML_Q4_1"),
    _whole(r"ggml\.Q5_0\..*", "GGML_Q5_0"),
    _whole(r"ggml\.Q5_1\..*", "GGML_Q5_1"),
    _whole(r"ggml\.Q8_0\..*", "GGML_Q8_0"),
    _whole(r"gptq\.asym\.(?!mse).*", "GPTQ_UINT4_ASYMMETRIC"),
    _whole(r"gptq\.sym\.(?!mse).*", "GPTQ_UINT4_SYMMETRIC"),
    _whole(r"inc\.asym4\..*", "INC_UINT4_ASYMMETRIC"),
    _whole(r"inc\.asym8\..*", "INC_UINT8_ASYMMETRIC"),
    _whole(r"inc\.sym4\.full\..*", "INC_INT4_FULL_RANGE"),
    _whole(r"inc\.sym4\..*", "INC_INT4_SYMMETRIC"),
    _whole(r"inc\.sym8\.full\..*", "INC_INT8_FULL_RANGE"),
    _whole(r"inc\.sym8\..*", "INC_INT8_SYMMETRIC"),
    _whole(r"modelopt\.int8_fake\..*", "MODELOPT_FAKE_INT8"),
    _whole(r"modelopt\.onnx_int4\.sym\..*", "MODELOPT_ONNX_INT4"),
    _whole(r"modelopt\.onnx_int4\.zp\..*", "MODELOPT_ONNX_UINT4"),
    _whole(r"nncf\.INT4_ASYM\..*", "NNCF_UINT4_ASYMMETRIC"),
    _whole(r"nncf\.INT4_SYM\..*", "NNCF_INT4_SYMMETRIC"),
    _whole(r"nncf\.INT8_ASYM\..*", "NNCF_UINT8_ASYMMETRIC"),
    _whole(r"nncf\.INT8_SYM\..*", "NNCF_INT8_SYMMETRIC"),
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
    _shifted(r"quanto\.qint4\.shift\..*", "QUANTO_INT4_SHIFT"),
    _whole(r"quanto\.qint4\.zp\..*", "QUANTO_INT4_ZERO_POINT"),
    _whole(r"quanto\.qint8\..*", "QUANTO_INT8"),
    _whole(r"quark\.-128_127\.asym\..*", "QUARK_INT8_ASYMMETRIC"),
    _whole(r"quark\.-128_127\.sym\..*", "QUARK_INT8_SYMMETRIC"),
    _whole(r"quark\.-8_7\.sym\..*", "QUARK_INT4_SYMMETRIC"),
    _whole(r"quark\.0_15\.asym\..*", "QUARK_UINT4_ASYMMETRIC"),
    _whole(r"smoothquant\.w8\..*", "SMOOTHQUANT_INT8"),
    _whole(r"tflite\.PortableAsymmetricQuantizeFloats\..*", "TFLITE_HYBRID_INT8_ASYMMETRIC"),
    _whole(r"tflite\.PortableSymmetricQuantizeFloats\..*", "TFLITE_HYBRID_INT8_SYMMETRIC"),
    _whole(r"torch\.choose_qparams_per_tensor\.full\..*", "TORCH_DYNAMIC_UINT8"),
    _whole(r"torch\.choose_qparams_per_tensor\.rr\..*", "TORCH_DYNAMIC_UINT8_REDUCED"),
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
