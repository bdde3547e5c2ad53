"""Which float tensor a quantized weight was made from, and whether the two models are one."""
