"""The derivative of an ONNX graph is another ONNX graph, run by the same runtime.

`gradient` walks the nodes backwards once. Each operator has a rule in one of the family files
(`elementwise`, `matmul`, `convolution`, ...), listed in `table`. Rules read shapes that were
observed on the data (`facts`), so the graph that comes out holds no shape arithmetic: sums
over broadcast axes, paddings and counts are constants in it.
"""
