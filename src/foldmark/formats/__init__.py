"""Bytes to quantized tensors and back, lazily, one file a format."""
