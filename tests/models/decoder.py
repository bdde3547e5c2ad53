"""A decoder of tokens with the keys and values it keeps for its next run; weights are drawn."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.models.store import built

WORDS, WIDTH, HEADS = 24, 16, 2


def decoder() -> onnx.ModelProto:
    """logits (n, t, WORDS) and present.0.key (n, HEADS, past + t, WIDTH / HEADS)."""
    draw = np.random.default_rng(0)
    table = draw.standard_normal((WORDS, WIDTH)).astype(np.float32)
    key, head = (
        draw.standard_normal(shape).astype(np.float32) for shape in ((WIDTH, WIDTH), (WIDTH, WORDS))
    )
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"], "embed"),
        helper.make_node("MatMul", ["embedded", "key"], ["keys"], "key"),
        helper.make_node("Reshape", ["keys", "heads"], ["apart"], "apart"),
        helper.make_node("Transpose", ["apart"], ["new"], "turn", perm=[0, 2, 1, 3]),
        helper.make_node("Concat", ["past.0.key", "new"], ["present.0.key"], "keep", axis=2),
        helper.make_node("Tanh", ["keys"], ["bent"], "bend"),
        helper.make_node("MatMul", ["bent", "head"], ["logits"], "head"),
    ]
    kept = ["n", HEADS, "past", WIDTH // HEADS]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "t"]),
            helper.make_tensor_value_info("past.0.key", TensorProto.FLOAT, kept),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", "t", WORDS]),
            helper.make_tensor_value_info(
                "present.0.key", TensorProto.FLOAT, ["n", HEADS, "all", WIDTH // HEADS]
            ),
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(key, "key"),
            numpy_helper.from_array(head, "head"),
            numpy_helper.from_array(np.array([0, 0, HEADS, WIDTH // HEADS]), "heads"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def decoder_file() -> Path:
    """The decoder as a file."""
    return built("decoder.onnx", lambda path: onnx.save_model(decoder(), path))


def tokens(samples: int, length: int = 6, past: int = 0) -> dict[str, np.ndarray]:
    """Tokens, an earlier run's keys, and for each token the class that should follow."""
    draw = np.random.default_rng(1)
    shape = (samples, HEADS, past, WIDTH // HEADS)
    return {
        "ids": draw.integers(0, WORDS, (samples, length)),
        "past.0.key": draw.standard_normal(shape).astype(np.float32),
        "labels": draw.integers(0, WORDS, (samples, length)),
    }
