"""Which rules of the catalogue give all weights of a form: each further weight tells more apart.

The search looks at two weights of a form, and one weight may hold none of the few elements on
which two rules part. What is left of its rules is put to the other weights too.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from foldmark.compare.fit import Fit
from foldmark.compare.matching import names_that_give
from foldmark.compare.observed import observe
from foldmark.errors import NotSupported
from foldmark.formats.stored import StoredTensor
from foldmark.formats.values import Array

__all__ = ["Agreement", "Form", "Witness", "form_of", "names_in_common"]

Form = tuple[str, str, str, bool]


@dataclass(frozen=True)
class Agreement:
    """The rules that give every code, scale and zero point of the weights of one form.

    Attributes:
        names: of the catalogue; blocks whose codes are all zero are left out where no rule
            gives these too.
        agree: on how many weights.
        total: of how many that have a float original.
    """

    names: tuple[str, ...]
    agree: int
    total: int


@dataclass(frozen=True, eq=False)
class Witness:
    """A weight that says something of its form's rule.

    Attributes:
        tensor: quantized.
        fit: what the search found; None where it was not searched.
        exact: loads the float original in the tensor's layout; gives None where there is none.
    """

    tensor: StoredTensor
    fit: Fit | None
    exact: Callable[[], Array | None]

    def names(self, candidates: tuple[str, ...]) -> tuple[str, ...] | None:
        """Return the rules that give this weight, every block of it; None where unknown.

        Args:
            candidates: the rules that are asked; of a searched weight those that were found.
        """
        if self.fit is not None:
            found = self.fit.inference
            candidates = () if found is None else found.names or found.names_alive
            if self.fit.tensor is not self.tensor:  # the first rows of a large one
                return candidates
        weights = self.exact() if candidates else None
        if weights is None:
            return () if self.fit is not None else None
        try:
            seen = observe(self.tensor.load(), self.tensor.layout, weights, blocks=weights.size)
        except NotSupported:
            return ()
        return names_that_give(seen, candidates) or names_that_give(
            seen.part(seen.alive()), candidates
        )


def form_of(tensor: StoredTensor) -> Form:
    """Return what weights have in common whose rules are most likely the same."""
    layout = tensor.layout
    is_matrix = len(tensor.shape) > 1  # biases are quantized by rules of their own
    return layout.packing, layout.number_format, layout.granularity(tensor.shape), is_matrix


def names_in_common(weights: Iterable[Witness]) -> dict[Form, Agreement]:
    """Return for every form the rules that give the most of its weights.

    A form without any such rule is left out.
    """
    forms: dict[Form, list[Witness]] = {}
    for witness in weights:
        forms.setdefault(form_of(witness.tensor), []).append(witness)
    return dict(_agreements(forms))


def _agreements(forms: dict[Form, list[Witness]]) -> Iterator[tuple[Form, Agreement]]:
    for form, members in forms.items():
        camps: list[_Camp] = []
        # The searched first: what they leave is all that the others are asked.
        heard = [_join(camps, each) for each in sorted(members, key=lambda m: m.fit is None)]
        if camps:
            largest = max(camps, key=lambda camp: camp.agree)
            yield form, Agreement(largest.names, largest.agree, sum(heard))


@dataclass
class _Camp:
    """Weights that one rule explains, and the rules that still do."""

    names: tuple[str, ...]
    agree: int = 1


def _join(camps: list[_Camp], witness: Witness) -> bool:
    """Let a weight join the largest camp that one rule still explains with it, or found one.

    Returns whether it had anything to say.
    """
    asked = tuple(dict.fromkeys(name for camp in camps for name in camp.names))
    own = witness.names(asked)
    if own is None:
        return False
    for camp in sorted(camps, key=lambda each: -each.agree):
        kept = tuple(name for name in camp.names if name in own)
        if kept:
            camp.names, camp.agree = kept, camp.agree + 1
            return True
    if own:
        camps.append(_Camp(own))
    return True
