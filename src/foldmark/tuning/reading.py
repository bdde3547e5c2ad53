"""Who reads the codes of which tensor, and who still does when a product stays in float."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import onnx

from foldmark.recipes.recipe import Mode, Override, Recipe
from foldmark.surgery.account import Account
from foldmark.surgery.activations import Plan, plan_pairs
from foldmark.surgery.choice import Selection
from foldmark.surgery.editor import Editor, consumers, node_name
from foldmark.surgery.prepare import prepared_for_pairs
from foldmark.surgery.products import Product, find_product

__all__ = ["Reading", "only", "own_name", "touching"]


class Reading:
    """The pairs that a recipe makes, and what they are read by.

    Args:
        model: the float model.
        recipe: the recipe.
    """

    def __init__(self, model: onnx.ModelProto, recipe: Recipe) -> None:
        self._recipe = recipe
        prepared = prepared_for_pairs(model, self._selection(), Account())
        self._editor = Editor(prepared)
        self.near = touching(prepared)
        self.plans: list[Plan] = self._planned()

    def _selection(self, in_float: str = "") -> Selection:
        recipe = self._recipe
        more = (Override(only(in_float), keep_float=True),) if in_float else ()
        return Selection(replace(recipe, overrides=(*recipe.overrides, *more)).choice())

    def _planned(self, in_float: str = "") -> list[Plan]:
        return plan_pairs(self._editor, Account(), self._selection(in_float))

    def readers(self, in_float: str = "") -> Mapping[str, set[str]]:
        """Return, by tensor, the nodes that read its codes' value.

        Args:
            in_float: a product that is left in float beside those that the recipe leaves.
        """
        plans = self._planned(in_float) if in_float else self.plans
        found: dict[str, set[str]] = defaultdict(set)
        for plan in plans:
            for product in plan.products:
                found[product.node.input[product.activation]].add(product.name)
            if self._recipe.mode is not Mode.STATIC:
                continue  # no kernel makes codes that others read
            nodes = consumers(plan.scope.graph)
            for name in plan.chained & plan.pairs.keys():
                found[name] |= {node_name(node) for node in nodes[name]}
        return found

    def products(self) -> list[str]:
        """Return the names of the products that get codes."""
        return [product.name for plan in self.plans for product in plan.products]

    def around(self, tensor: str) -> list[Product]:
        """Return the products that read a tensor's codes or make them."""
        found = []
        for plan in self.plans:
            for product in plan.products:
                names = {product.node.input[product.activation]}
                names |= {plan.results[product.name]} if product.name in plan.results else set()
                if tensor in {plan.source(name).tensor for name in names}:
                    found.append(product)
        return found

    def result(self, product: Product) -> str:
        """Return the tensor with the codes that a product's kernel makes, "" for none."""
        found = (plan.results.get(product.name, "") for plan in self.plans)
        return next((name for name in found if name), "")

    def joined(self, tensor: str) -> list[str]:
        """Return the tensors whose codes another operator than a product joins to a tensor's."""
        for plan in self.plans:
            makers = {name: node for node in plan.scope.graph.node for name in node.output}
            node = makers.get(tensor)
            # Activation functions lie between the join and the tensor with codes.
            while node is not None and not isinstance(find_product(node, plan.scope), Product):
                found = [name for name in node.input if name in plan.chained & plan.pairs.keys()]
                if found:
                    return found
                node = makers.get(node.input[0]) if node.input else None
        return []

    def has_own(self, tensor: str) -> bool:
        """Return whether a tensor has a pair whose codes are its own."""
        return any(tensor in p.pairs and not p.pairs[tensor].same_as for p in self.plans)


# What quantizing adds to the names of the float model's tensors.
_SUFFIXES = ("_DequantizeLinear_Output", "_dequantized", "_quantized", "_smoothed", "_corrected")


def own_name(name: str, known: Mapping[str, object]) -> str:
    """Return the float model's name of a tensor that quantizing renamed."""
    while name not in known:
        shorter = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), name)
        if shorter == name:
            break
        name = shorter
    return name


def touching(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Return the names of the products that read or make each tensor, weights and biases too.

    What follows a product alone, such as its activation function, makes its result.
    """
    editor = Editor(model)
    near: dict[str, list[str]] = defaultdict(list)
    for scope in editor.scopes():
        readers = consumers(scope.graph)
        for node in scope.graph.node:
            if isinstance(find_product(node, scope), Product):
                names = [*node.input, *node.output]
                followers = readers[node.output[0]]
                if len(followers) == 1:
                    names += followers[0].output
                for name in names:
                    near[name].append(node_name(node))
    return near


def only(name: str) -> str:
    """Return a pattern that matches a node's name and nothing else."""
    escaped = "".join(c if c.isalnum() or c in "_/" else f"\\{c}" for c in name)
    return f"^{escaped}$"
