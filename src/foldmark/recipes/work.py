"""What one quantization hands on from step to step."""

from collections.abc import Callable
from dataclasses import dataclass

import onnx

from foldmark.calibrate.calibration import Calibration
from foldmark.errors import NoData
from foldmark.methods.hessian import Inputs
from foldmark.recipes.evidence import Evidence, observe_inputs, observe_layers
from foldmark.recipes.moving import chosen_products
from foldmark.recipes.recipe import Recipe, Rounding
from foldmark.runtimes.batches import Data
from foldmark.runtimes.inputs import describe_inputs, model_inputs
from foldmark.surgery.account import Account
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor
from foldmark.surgery.products import Product

__all__ = ["Progress", "Work"]

Progress = Callable[[int], None]


@dataclass
class Work:
    """What one quantization needs to hand on from step to step."""

    model: onnx.ModelProto
    recipe: Recipe
    data: Data | None
    ranges: Calibration | None
    account: Account
    selection: Selection
    batch_size: int
    progress: Progress | None

    def samples(self, why: str) -> Data:
        """Return the data, or raise NoData saying what it is needed for."""
        if self.data is None:
            raise NoData(
                f"{why} needs data",
                where=f"recipe {self.recipe.name!r}",
                expected=f"samples of {describe_inputs(model_inputs(self.model))}",
                todo="give --data, or --ranges from foldmark calibrate; --data random:64 to try it",
            )
        return self.data

    def layers(self, rounding: Rounding) -> Evidence:
        """Return the second moments of what the chosen products read, over the data."""
        samples = self.samples(rounding.value)
        return observe_layers(self.model, self._products(), samples, self.batch_size)

    def inputs(self, method: str) -> dict[str, Inputs]:
        """Return what the chosen products read, over the data."""
        samples = self.samples(method)
        return observe_inputs(self.model, self._products(), samples, self.batch_size)

    def _products(self) -> list[Product]:
        return chosen_products(Editor(self.model), self.selection)
