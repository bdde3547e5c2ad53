"""Edits of ONNX graphs that quantize them."""
