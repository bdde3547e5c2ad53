"""Module paths recovered from the names that exporters leave in a graph."""

import ast
import re
from collections.abc import Callable, Iterable

import onnx

__all__ = ["Labels", "common_path", "module_path"]

# What torch.onnx writes into a node's metadata: the module path of each enclosing scope.
_SCOPES = "pkg.torch.onnx.name_scopes"
_PARAMETER = re.compile(
    r"[./](weight|bias|kernel|gamma|beta|scale|W|b|w|weight_v|in_proj_weight|in_proj_bias)"
    r"(?=$|[._/-])"
)
# How many nodes away a nameless value looks for a name: from attention's scores to a projection,
# with a site behind every node.
_FAR = 24


def module_path(parameter: str) -> str:
    """Return the module that a parameter's name belongs to, "" when the name is generated.

    "encoder.layer.3.output.dense.weight" becomes "encoder/layer.3/output/dense".
    """
    found = _PARAMETER.search(parameter)
    if found is None or "::" in parameter:
        return ""
    return _as_path(parameter[: found.start()])


def common_path(paths: Iterable[str]) -> str:
    """Return the path that several lie under, "" when they share none."""
    parts = [path.split("/") for path in paths]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return "/".join(shared)


def _as_path(dotted: str) -> str:
    """Return a path whose parts are module names; an index stays with the list it counts."""
    path = dotted.strip("/.").replace(".", "/")
    return re.sub(r"/(\d+)(?=/|$)", r".\1", path)


class Labels:
    """The module path of every node of a graph, as far as names tell it."""

    def __init__(self, nodes: Iterable[onnx.NodeProto], constants: Iterable[str]) -> None:
        self._constants = set(constants)
        self._nodes = list(nodes)
        self._consumers: dict[str, list[onnx.NodeProto]] = {}
        self._makers: dict[str, onnx.NodeProto] = {}
        for node in self._nodes:
            for name in node.input:
                self._consumers.setdefault(name, []).append(node)
            for name in node.output:
                self._makers[name] = node

    def of(self, node: onnx.NodeProto, parameter: str = "") -> str:
        """Return the module path of a node, from itself or from what it is added to.

        Args:
            node: the node.
            parameter: the float name of the weight that it takes, where that is known.
        """
        return (
            self._scope(node)
            or self._path_in_name(node)
            or module_path(parameter)
            or self._parameters(node)
            or self._bias_after(node)
        )

    def near(self, value: str) -> str:
        """Return the module path of what reads a value, or else of what lies around it.

        A value without a name of its own is put to what the nearest named layers before and
        behind it have in common, to the one before where that is nothing.
        """
        readers = (self.of(node) for node in self._consumers.get(value, []))
        found = next((path for path in readers if path), "")
        if found:
            return found
        before = self._first([value], self._before)
        behind = self._first([value], self._behind)
        return common_path([before, behind] if before and behind else [before]) or before or behind

    def around(self, value: str) -> str:
        """Return the module path of what makes a value, or else of what lies around it."""
        maker = self._makers.get(value)
        return (self.of(maker) if maker is not None else "") or self.near(value)

    def _before(self, value: str) -> tuple[list[onnx.NodeProto], list[str]]:
        node = self._makers.get(value)
        return ([], []) if node is None else ([node], list(node.input))

    def _behind(self, value: str) -> tuple[list[onnx.NodeProto], list[str]]:
        nodes = self._consumers.get(value, [])
        return nodes, [name for node in nodes for name in node.output]

    def _first(
        self, pending: list[str], step: Callable[[str], tuple[list[onnx.NodeProto], list[str]]]
    ) -> str:
        """Return the first module path met from some values on, in one direction."""
        seen = set(pending)
        for _ in range(_FAR):
            ahead = []
            for value in pending:
                nodes, further = step(value)
                found = next((path for node in nodes if (path := self.of(node))), "")
                if found:
                    return found
                ahead += [name for name in further if name not in seen]
                seen.update(further)
            pending = ahead
        return ""

    @staticmethod
    def _scope(node: onnx.NodeProto) -> str:
        for entry in node.metadata_props:
            if entry.key == _SCOPES:
                scopes = _string_list(entry.value)
                inner = [scope for scope in scopes[:-1] if scope]
                return _as_path(inner[-1]) if inner else ""
        return ""

    @staticmethod
    def _path_in_name(node: onnx.NodeProto) -> str:
        head, slash, tail = node.name.strip("/").rpartition("/")
        return head if slash and tail.startswith(_stem(node.op_type)) else ""

    def _parameters(self, node: onnx.NodeProto) -> str:
        paths = (module_path(name) for name in node.input if name in self._constants)
        return next((path for path in paths if path), "")

    def _bias_after(self, node: onnx.NodeProto) -> str:
        """Return the module of the bias that is added to the node's output."""
        for consumer in self._consumers.get(node.output[0], []):
            if consumer.op_type == "Add":
                return self._scope(consumer) or self._parameters(consumer)
        return ""


def _stem(operator: str) -> str:
    """Return what an exporter calls an operator: QLinearConv was a Conv."""
    return operator.removeprefix("QLinear").removesuffix("Integer")


def _string_list(text: str) -> list[str]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(item) for item in value] if isinstance(value, list) else []
