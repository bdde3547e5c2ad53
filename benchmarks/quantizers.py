"""One static quantization by one tool in this process, and what it cost.

    python benchmarks/quantizers.py TOOL RANGES MODEL DATA OUTPUT

prints a line of JSON. `benchmarks.quantize` starts it once per measurement, with the interpreter
that has the tool; nothing here imports a tool that was not asked for.
"""

import json
import logging
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

Run = Callable[[Path, Path, Path], None]
MIN_MAX, PERCENTILE, ENTROPY = "min-max", "percentile", "entropy"
_PERCENT = 99.99


def foldmark(ranges: str) -> Run:
    """What `foldmark quantize --observer RANGES` does."""
    return _foldmark(ranges)


def foldmark_smooth(ranges: str) -> Run:
    """With --method smoothquant, which NNCF applies to transformers by itself."""
    return _foldmark(ranges, "smoothquant")


def _foldmark(ranges: str, *methods: str) -> Run:
    from foldmark.calibrate.observers import Method, Observer
    from foldmark.recipes.quantize import quantize_model
    from foldmark.recipes.recipe import MethodName, Recipe
    from foldmark.recipes.save import save_model

    observer = Observer(Method(ranges), percentile=_PERCENT)
    recipe = Recipe(observer=observer, methods=tuple(map(MethodName, methods)))

    def run(model: Path, data: Path, output: Path) -> None:
        save_model(quantize_model(model, recipe, data).model, output)

    return run


def float_run(_ranges: str) -> Run:
    """The float model opened and run on the samples: what every calibration must do at least."""
    from foldmark.runtimes.onnxruntime import Session

    def run(model: Path, data: Path, _output: Path) -> None:
        session = Session(model)
        for row in _batches(data, 8):
            session.run(row)

    return run


def onnxruntime(ranges: str) -> Run:
    """quant_pre_process and quantize_static as documented: one sample a time, all operators."""
    return _onnxruntime(ranges, batch=1)


def onnxruntime_same(ranges: str) -> Run:
    """The same in foldmark's conditions: batches of 8, no operators but those that it takes."""
    return _onnxruntime(ranges, batch=8, operators=["MatMul", "Gemm", "Conv", "Gather"])


def _onnxruntime(ranges: str, batch: int, operators: list[str] | None = None) -> Run:
    from onnxruntime.quantization import (
        CalibrationDataReader,
        CalibrationMethod,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        def __init__(self, data: Path) -> None:
            self.rows = _batches(data, batch)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.rows, None)

    method = {
        MIN_MAX: CalibrationMethod.MinMax,
        PERCENTILE: CalibrationMethod.Percentile,
        ENTROPY: CalibrationMethod.Entropy,
    }[ranges]

    def run(model: Path, data: Path, output: Path) -> None:
        prepared = output.with_suffix(".prepared.onnx")
        quant_pre_process(str(model), str(prepared))
        quantize_static(
            str(prepared),
            str(output),
            Reader(data),
            op_types_to_quantize=operators,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=method,
            extra_options={"CalibPercentile": _PERCENT} if ranges == PERCENTILE else None,
        )
        prepared.unlink()

    return run


def nncf(ranges: str) -> Run:
    """nncf.quantize with its own defaults; min-max only, as it has no other without options."""
    import nncf
    import onnx

    if ranges != MIN_MAX:
        raise SystemExit(f"{ranges} is not compared with NNCF")

    def run(model: Path, data: Path, output: Path) -> None:
        rows = list(_batches(data, 1))
        network = onnx.load(model)
        attention = any(node.op_type == "Softmax" for node in network.graph.node)
        kind = nncf.ModelType.TRANSFORMER if attention else None
        made = nncf.quantize(network, nncf.Dataset(rows), subset_size=len(rows), model_type=kind)
        onnx.save(made, output)

    return run


def aimet(ranges: str) -> Run:
    """AIMET's QuantizationSimModel with min-max encodings, exported as pairs."""
    import onnx
    from aimet_common.defs import QuantScheme
    from aimet_onnx.quantsim import QuantizationSimModel

    if ranges != MIN_MAX:
        raise SystemExit(f"{ranges} is not compared with AIMET")

    def run(model: Path, data: Path, output: Path) -> None:
        rows = list(_batches(data, 8))
        simulated = QuantizationSimModel(
            onnx.load(model), quant_scheme=QuantScheme.min_max, param_type="int8",
            activation_type="int8",
        )  # fmt: skip

        def forward(session: object, _: object) -> None:
            for row in rows:
                session.run(None, row)  # type: ignore[attr-defined]

        simulated.compute_encodings(forward, None)
        onnx.save(simulated.to_onnx_qdq(), output)

    return run


def _batches(data: Path, size: int) -> Iterator[dict[str, np.ndarray]]:
    arrays = dict(np.load(data))
    count = len(next(iter(arrays.values())))
    for start in range(0, count, size):
        yield {name: array[start : start + size] for name, array in arrays.items()}


TOOLS: dict[str, Callable[[str], Run]] = {
    "float run": float_run,
    "foldmark": foldmark,
    "foldmark, smoothquant": foldmark_smooth,
    "onnxruntime": onnxruntime,
    "onnxruntime, same operators": onnxruntime_same,
    "nncf": nncf,
    "aimet": aimet,
}


def main() -> None:
    tool, ranges = sys.argv[1:3]
    model, data, output = map(Path, sys.argv[3:])
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    begin = time.perf_counter()
    run = TOOLS[tool](ranges)
    imported, used = time.perf_counter(), time.process_time()
    run(model, data, output)
    seconds, processor = time.perf_counter() - imported, time.process_time() - used
    # The high-water mark of this process alone; getrusage would count the parent's before exec.
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    megabytes = int(found[1]) / 1024 if found else 0.0
    cost = {"import": imported - begin, "seconds": seconds, "processor": processor}
    print(json.dumps(cost | {"megabytes": megabytes}))


if __name__ == "__main__":
    main()
