"""Quantized copies of the models, made by ONNX Runtime's own tools."""

import logging
import warnings
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from tests.models.store import built


class Copy(Enum):
    """How a copy is quantized."""

    QDQ = "qdq"
    QDQ_PER_CHANNEL = "qdq-per-channel"
    QOPERATOR = "qoperator"
    DYNAMIC = "dynamic"
    FLOAT16 = "float16"


class Samples(CalibrationDataReader):
    """Feeds arrays to ONNX Runtime's calibration, eight samples at a time."""

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        count = len(next(iter(arrays.values())))
        self._batches: Iterator[dict[str, np.ndarray]] = iter(
            [{k: v[i : i + 8] for k, v in arrays.items()} for i in range(0, count, 8)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._batches, None)


def quantized(
    model: Path,
    copy: Copy,
    calibration: Mapping[str, np.ndarray],
    operators: tuple[str, ...] | None = None,
) -> Path:
    """Return a quantized copy; `operators` limits which are quantized, None for all known."""

    def build(path: Path) -> None:
        logging.getLogger().setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _write(model, copy, calibration, operators, path)

    some = "-".join(operators or ())
    return built(f"{model.stem}.{copy.value}{some and '-'}{some}.onnx", build)


def _write(model, copy, calibration, operators, path: Path) -> None:
    limited = list(operators) if operators else None
    if copy is Copy.FLOAT16:
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), path)
    elif copy is Copy.DYNAMIC:
        quantize_dynamic(model, path, op_types_to_quantize=limited, weight_type=QuantType.QInt8)
    else:
        form = QuantFormat.QOperator if copy is Copy.QOPERATOR else QuantFormat.QDQ
        quantize_static(
            model,
            path,
            Samples(calibration),
            quant_format=form,
            op_types_to_quantize=limited,
            per_channel=copy is Copy.QDQ_PER_CHANNEL,
            weight_type=QuantType.QInt8,
            activation_type=QuantType.QUInt8 if form is QuantFormat.QOperator else QuantType.QInt8,
        )
