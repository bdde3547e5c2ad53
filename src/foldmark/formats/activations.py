"""How a file says that the values between its weights are quantized."""

from dataclasses import dataclass

from foldmark.formats.values import Array

__all__ = ["StoredActivation"]


@dataclass(frozen=True, eq=False)
class StoredActivation:
    """One value of the network that is quantized whenever the model runs.

    Attributes:
        name: of the float value, as far as the file tells it.
        number_format: "int8", "uint8", "float8_e4m3fn" ...; "" where the file does not say.
        scale: float32, one or one a channel; None where it is chosen at run time.
        zero_point: of the scale's size, or one; None for zero.
    """

    name: str
    number_format: str
    scale: Array | None = None
    zero_point: Array | None = None

    @property
    def is_dynamic(self) -> bool:
        """True where the scale is chosen at run time."""
        return self.scale is None
