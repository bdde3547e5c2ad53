"""The steps of the course, in order: an explicit table, one file a step."""

from typing import Final

from foldmark.lab.exercise import Step
from foldmark.lab.steps import (
    s01_rounding,
    s02_symmetric,
    s03_affine,
    s04_ruler,
    s05_outlier,
    s06_rows,
    s07_integers,
    s08_softmax,
    s09_attention,
    s10_clipping,
    s11_blocks,
    s12_requantize,
    s13_gptq,
    s14_smoothing,
    s15_cache,
    s16_training,
)

__all__ = ["STEPS"]

STEPS: Final[tuple[Step, ...]] = (
    s01_rounding.STEP,
    s02_symmetric.STEP,
    s03_affine.STEP,
    s04_ruler.STEP,
    s05_outlier.STEP,
    s06_rows.STEP,
    s07_integers.STEP,
    s08_softmax.STEP,
    s09_attention.STEP,
    s10_clipping.STEP,
    s11_blocks.STEP,
    s12_requantize.STEP,
    s13_gptq.STEP,
    s14_smoothing.STEP,
    s15_cache.STEP,
    s16_training.STEP,
)
