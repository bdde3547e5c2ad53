"""The front door: every public name loads, has a docstring, and nothing else is promised."""

import inspect

import pytest

import foldmark

NAMES = [name for name in foldmark.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", NAMES)
def test_public_name_loads_and_is_described(name: str) -> None:
    thing = getattr(foldmark, name)
    if inspect.isclass(thing) or inspect.isfunction(thing):
        assert inspect.getdoc(thing)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'fold'"):
        _ = foldmark.fold


def test_dir_lists_the_public_names() -> None:
    assert set(dir(foldmark)) == set(foldmark.__all__)
