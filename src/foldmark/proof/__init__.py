"""Whether a quantized model is smaller, faster and as good: three claims, measured together."""
