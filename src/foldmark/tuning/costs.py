"""What a repair costs in every run: by the float model's times and those of conversions."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx

from foldmark.formats.onnx_file import read_model
from foldmark.recipes.recipe import Mode
from foldmark.runtimes.onnxruntime import Optimization
from foldmark.tuning.reading import Reading
from foldmark.tuning.trial import Bench, Trial

__all__ = ["Costs", "measure_costs", "owner"]

_RUNS = 2
_TO_CODES, _TO_FLOATS = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class Costs:
    """Times by which repairs are priced, in seconds.

    Attributes:
        float_times: of the float model's operators, by name.
        lost: the part of an operator's float time that integers gained: 1 - 1 / speed.
        to_codes: of making codes of a tensor, by its name.
        to_floats: of making floats of a tensor's codes, by its name.
    """

    float_times: Mapping[str, float]
    lost: float
    to_codes: Mapping[str, float]
    to_floats: Mapping[str, float]

    def in_float(self, product: str) -> float:
        """Return milliseconds that a product costs when it is left in float."""
        times = sorted(self.float_times.values())
        usual = times[len(times) // 2] if times else 1e-6
        return 1e3 * self.float_times.get(product, usual) * self.lost

    def wide(self, tensor: str, reading: Reading) -> float:
        """Return milliseconds that 16-bit codes of a tensor cost.

        No integer kernel takes them: what reads or makes them runs in float between conversions,
        those of the other tensors that it reads and makes included, weights too.
        """
        codes, floats = {tensor}, {tensor, *reading.joined(tensor)}
        products = reading.around(tensor)
        for product in products:
            floats |= set(product.node.input)
            codes.add(reading.result(product))
        conversions = sum(self.to_codes.get(name, 0.0) for name in codes)
        conversions += sum(self.to_floats.get(name, 0.0) for name in floats)
        return sum(self.in_float(each.name) for each in products) + 1e3 * conversions


def measure_costs(bench: Bench, trial: Trial, model: onnx.ModelProto, reading: Reading) -> Costs:
    """Time the float model's operators, and the conversions of a trial's model one by one."""
    real = bench.executed(model, bench.float_model.parent, runs=_RUNS)
    conversions = _conversions(bench, trial, reading)
    return Costs(
        {each.name: each.seconds for each in real},
        max(0.0, 1 - 1 / trial.speed.value),
        conversions[_TO_CODES],
        conversions[_TO_FLOATS],
    )


def _conversions(bench: Bench, trial: Trial, reading: Reading) -> Mapping[str, Mapping[str, float]]:
    """Return seconds by operator and tensor, as each conversion takes where nothing is fused."""
    seconds: dict[str, dict[str, float]] = defaultdict(dict)
    if trial.recipe.mode is not Mode.STATIC:
        return seconds
    path = Path(trial.model)
    for each in bench.executed(
        read_model(path), path.parent, runs=_RUNS, optimization=Optimization.OFF
    ):
        if each.operator in (_TO_CODES, _TO_FLOATS):
            name = owner(each.name, reading.near)
            seconds[each.operator][name] = seconds[each.operator].get(name, 0.0) + each.seconds
    return seconds


def owner(name: str, known: Mapping[str, object]) -> str:
    """Return the tensor or product that an executed node's name begins with.

    Quantizing and ONNX Runtime name what they add after it: `x_QuantizeLinear`, `product_quant`.
    """
    while name not in known and "_" in name:
        name = name.rpartition("_")[0]
    return name
