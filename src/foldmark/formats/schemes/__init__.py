"""How tools lay quantized weights out as named arrays, one module a tool."""
