"""A quantized ONNX graph becomes a float skeleton, quantization sites, and derivatives."""
