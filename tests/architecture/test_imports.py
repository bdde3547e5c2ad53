"""Imports go one way: a module may import only from ranks below its own (or its own package)."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "foldmark"

RANKS = {
    "errors": 0,
    "exact": 1,
    "kernels": 2,
    "tensors": 3,
    "formats": 4,
    "graphs": 5,
    "runtimes": 6,
    "calibrate": 7,
    "methods": 7,
    "surgery": 8,
    "ledger": 8,
    "compare": 9,
    "proof": 8,
    "recipes": 9,
    "report": 10,
    "tuning": 11,
    "cli": 12,
}
# Beside the tower: what each may import, apart from itself and errors.
BESIDE: dict[str, set[str]] = {"lab": {"exact"}, "rules": {"exact"}, "demo": set()}
# The package's own front door may name anything; nothing but the command line may come back in.
FRONT_DOORS = {"__init__", "__main__"}


def imported_packages(source: str) -> set[str]:
    """Return the foldmark packages that a module's text imports, wherever the import stands."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "foldmark":
                names = [f"foldmark.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("foldmark.")}
    return found


def forbidden(package: str, imports: set[str]) -> set[str]:
    """Return those of the imports that point upward or sideways."""
    others = imports - {package}
    if package in BESIDE:
        return others - BESIDE[package] - {"errors"}
    rank = RANKS[package]
    allowed_beside = {"lab", "rules", "__version__"} if package == "cli" else {"rules"}
    return {
        other for other in others if other not in allowed_beside and RANKS.get(other, 99) >= rank
    }


MODULES = sorted(
    path
    for path in SOURCE.rglob("*.py")
    if (
        path.relative_to(SOURCE).parts[0] not in FRONT_DOORS
        and path.stem not in FRONT_DOORS | {"__init__"}
    )
    or len(path.relative_to(SOURCE).parts) > 1
)


def test_the_ranks_are_those_that_the_guide_lists() -> None:
    guide = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    listed = re.findall(r"^    (\w+) +(\d+) +\S", guide, re.MULTILINE)
    assert {name: int(rank) for name, rank in listed} == RANKS


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down(path: Path) -> None:
    package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert forbidden(package, imported_packages(path.read_text())) == set()


@pytest.mark.parametrize(
    ("package", "source", "caught"),
    [
        ("exact", "import foldmark.kernels.affine", {"kernels"}),
        ("kernels", "def f():\n    from foldmark.ledger import account", {"ledger"}),
        ("formats", "from foldmark import graphs", {"graphs"}),
        ("lab", "from foldmark.kernels import affine", {"kernels"}),
        ("ledger", "from foldmark.graphs import sites", set()),
        ("cli", "from foldmark import __version__", set()),
    ],
)
def test_the_detector_detects(package: str, source: str, caught: set[str]) -> None:
    assert forbidden(package, imported_packages(source)) == caught


ONLY_STANDARD_LIBRARY = """
import importlib, pkgutil, sys
before = set(sys.modules)
{statement}
loaded = {{name.split(".")[0] for name in set(sys.modules) - before}}
print(sorted(loaded - set(sys.stdlib_module_names) - {{"foldmark"}}))
"""

IMPORT_ALL_OF_EXACT = """
import foldmark.exact
for module in pkgutil.walk_packages(foldmark.exact.__path__, "foldmark.exact."):
    importlib.import_module(module.name)
"""


def third_party_modules_after(statement: str) -> str:
    """Run a statement in a fresh interpreter and return which outside packages it loaded."""
    return subprocess.run(
        [sys.executable, "-c", ONLY_STANDARD_LIBRARY.format(statement=statement)],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_exact_needs_the_standard_library_alone() -> None:
    assert third_party_modules_after(IMPORT_ALL_OF_EXACT) == "[]"


def test_the_import_detector_detects() -> None:
    assert "numpy" in third_party_modules_after("import foldmark.exact, numpy")


def test_import_foldmark_is_light() -> None:
    assert third_party_modules_after("import foldmark") == "[]"
