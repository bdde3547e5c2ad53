"""The nouns: block shapes, schemes and quantized tensors; frozen and checked when made."""
