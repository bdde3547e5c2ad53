"""Arrays in, quantized tensors out: the field's algorithms in their papers' letters."""
