"""Which columns of activations stay in float, and weights without them."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from foldmark.methods.hessian import Inputs
from foldmark.methods.outliers import outlier_columns
from foldmark.surgery.account import Account
from foldmark.surgery.products import Product
from foldmark.surgery.weights import Coded, Coder, WeightScheme

__all__ = ["find_outliers", "without_columns"]

Columns = Mapping[str, NDArray[np.int64]]


def find_outliers(
    products: Sequence[Product],
    seen: Mapping[str, Inputs],
    threshold: float,
    account: Account,
    tables: Collection[str] = (),
) -> dict[str, NDArray[np.int64]]:
    """Return, by tensor, the columns whose magnitude reached the threshold on the data.

    Args:
        products: what reads the tensors.
        seen: what was seen of each.
        threshold: magnitude.
        account: told how many there are.
        tables: weights that Gather reads, too.

    Products that share a weight share the columns: the weight's codes leave them out once.
    """
    columns = {name: outlier_columns(each.largest, threshold) for name, each in seen.items()}
    readers: dict[str, list[str]] = {}
    for product in products:
        readers.setdefault(product.weight, []).append(product.node.input[0])
    for tensors in readers.values():
        if len(tensors) > 1:
            together = np.unique(np.concatenate([columns[name] for name in tensors]))
            columns.update(dict.fromkeys(tensors, together))
    for product in products:
        if product.weight in tables:  # its codes are the table's, which Gather needs whole
            columns[product.node.input[0]] = np.zeros(0, np.int64)
    kept = sum(len(each) for each in columns.values())
    of = sum(len(each.largest) for each in seen.values())
    some = sum(bool(len(each)) for each in columns.values())
    account.methods.append(
        f"outlier-split: {kept} of {of} columns stay in float, in {some} of {len(columns)} inputs "
        f"(|x| >= {threshold:g} on this data; the graph can't choose them anew at run time)"
    )
    return columns


def without_columns(coder: Coder, columns: Columns) -> Coder:
    """Return a coder for weights whose rows at the kept columns are zero."""

    def code(
        product: Product, values: NDArray[np.floating], scheme: WeightScheme, axis: int | None
    ) -> Coded:
        kept = columns.get(product.node.input[0], np.zeros(0, np.int64))
        rest = np.array(values)
        if product.node.op_type in ("MatMul", "Gemm"):
            rest[(slice(None), kept) if product.transposed else kept] = 0
        return coder(product, rest, scheme, axis)

    return code
