"""TFLite models made with the format's own generated builders."""

import flatbuffers
import numpy as np
import tflite

TYPES = {
    "float32": tflite.TensorType.FLOAT32,
    "int8": tflite.TensorType.INT8,
    "uint8": tflite.TensorType.UINT8,
    "int16": tflite.TensorType.INT16,
    "int4": tflite.TensorType.INT4,
}


def dequantizing_model(
    codes: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, axis: int, kind: str
) -> bytes:
    """Return a model whose output is its one constant, dequantized by the DEQUANTIZE operator."""
    return listed_model((codes, scale, zero_point), axis, kind, 1)


def quantized_result(scale: float, zero_point: int) -> bytes:
    """Return the same model, its output said to be int8 with a scale and a zero point."""
    constant = np.zeros(8, np.int8), np.ones(1), np.zeros(1)
    return listed_model(constant, 0, "int8", 1, (np.array([scale]), np.array([zero_point])))


def listed_model(
    constant: tuple[np.ndarray, np.ndarray, np.ndarray],
    axis: int,
    kind: str,
    times: int,
    result: tuple[np.ndarray, np.ndarray] | None = None,
) -> bytes:
    """Return the same model with its one subgraph listed so many times.

    result: scale and zero point of its output, which is a float without.
    """
    codes, scale, zero_point = constant
    builder = flatbuffers.Builder(1024)
    buffers = [_buffer(builder, b""), _buffer(builder, _bytes(codes, kind))]
    quantization = _quantization(builder, scale, zero_point, axis)
    behind = None if result is None else _quantization(builder, *result, 0)
    tensors = [
        _tensor(builder, "w", codes.shape, TYPES[kind], 1, quantization),
        _tensor(
            builder, "y", codes.shape, TYPES["float32" if behind is None else "int8"], 0, behind
        ),
    ]
    inputs, outputs = _numbers(builder, [0]), _numbers(builder, [1])
    tflite.OperatorStart(builder)
    tflite.OperatorAddOpcodeIndex(builder, 0)
    tflite.OperatorAddInputs(builder, inputs)
    tflite.OperatorAddOutputs(builder, outputs)
    operators = _tables(builder, [tflite.OperatorEnd(builder)])
    tensor_table, none = _tables(builder, tensors), _numbers(builder, [])
    results = _numbers(builder, [1])
    tflite.SubGraphStart(builder)
    tflite.SubGraphAddTensors(builder, tensor_table)
    tflite.SubGraphAddInputs(builder, none)
    tflite.SubGraphAddOutputs(builder, results)
    tflite.SubGraphAddOperators(builder, operators)
    subgraphs = _tables(builder, [tflite.SubGraphEnd(builder)] * times)
    tflite.OperatorCodeStart(builder)
    code = tflite.BuiltinOperator.DEQUANTIZE
    tflite.OperatorCodeAddDeprecatedBuiltinCode(builder, code)
    tflite.OperatorCodeAddBuiltinCode(builder, code)
    tflite.OperatorCodeAddVersion(builder, 6)
    codes_table = _tables(builder, [tflite.OperatorCodeEnd(builder)])
    buffer_table, text = _tables(builder, buffers), builder.CreateString("one constant")
    tflite.ModelStart(builder)
    tflite.ModelAddVersion(builder, 3)
    tflite.ModelAddOperatorCodes(builder, codes_table)
    tflite.ModelAddSubgraphs(builder, subgraphs)
    tflite.ModelAddDescription(builder, text)
    tflite.ModelAddBuffers(builder, buffer_table)
    builder.Finish(tflite.ModelEnd(builder), b"TFL3")
    return bytes(builder.Output())


def _bytes(codes: np.ndarray, kind: str) -> bytes:
    if kind != "int4":
        return codes.astype(kind).tobytes()
    flat = np.append(codes.reshape(-1) & 15, np.zeros(codes.size % 2, int)).astype(np.uint8)
    return (flat[::2] | flat[1::2] << 4).tobytes()


def _buffer(builder: flatbuffers.Builder, data: bytes) -> int:
    vector = builder.CreateByteVector(data) if data else None
    tflite.BufferStart(builder)
    if vector is not None:
        tflite.BufferAddData(builder, vector)
    return tflite.BufferEnd(builder)


def _numbers(builder: flatbuffers.Builder, numbers: list[int]) -> int:
    return builder.CreateNumpyVector(np.array(numbers, np.int32))


def _tables(builder: flatbuffers.Builder, offsets: list[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return builder.EndVector()


def _quantization(
    builder: flatbuffers.Builder, scale: np.ndarray, zero_point: np.ndarray, axis: int
) -> int:
    scales = builder.CreateNumpyVector(scale.astype(np.float32))
    zeros = builder.CreateNumpyVector(zero_point.astype(np.int64))
    tflite.QuantizationParametersStart(builder)
    tflite.QuantizationParametersAddScale(builder, scales)
    tflite.QuantizationParametersAddZeroPoint(builder, zeros)
    tflite.QuantizationParametersAddQuantizedDimension(builder, axis)
    return tflite.QuantizationParametersEnd(builder)


def _tensor(  # noqa: PLR0917  (the fields of the schema, in its order)
    builder: flatbuffers.Builder,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    buffer: int,
    quantization: int | None,
) -> int:
    text, dims = builder.CreateString(name), _numbers(builder, list(shape))
    tflite.TensorStart(builder)
    tflite.TensorAddShape(builder, dims)
    tflite.TensorAddType(builder, kind)
    tflite.TensorAddBuffer(builder, buffer)
    tflite.TensorAddName(builder, text)
    if quantization is not None:
        tflite.TensorAddQuantization(builder, quantization)
    return tflite.TensorEnd(builder)
