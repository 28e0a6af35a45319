"""Data flows one way, and so do imports."""

import ast
import re
import subprocess
import sys

import pytest
from helpers import ROOT

PACKAGE = ROOT / "specdec_cli"
MODULES = sorted(PACKAGE.rglob("*.py"))
ORDER = [
    "errors",
    "settings",
    "buffers",
    "threads",
    "rows",
    "structure",
    "batch",
    "rounding",
    "near_ties",
    "exact",
    "validate",
    "shapes",
    "readers",
    "devices",
    "sums",
    "kernel",
    "mesh",
    "decide",
    "consoles",
    "explain",
    "cache",
    "programs",
    "compute",
    "verification",
    "loading",
    "inputs",
    "check",
    "outcome",
    "writers",
    "results",
    "pipeline",
    "filing",
    "terminal",
    "info",
    "progress",
    "guard",
    "cluster",
    "packing",
    "sharing",
]


def name_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path, outside_functions=False):
    tree = ast.parse(path.read_text())
    nodes = tree.body if outside_functions else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(library):
    found = set()
    for path in MODULES:
        tree = ast.parse(path.read_text())
        typing_only = {
            n
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for n in ast.walk(node)
        }
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            if node not in typing_only and any(n.split(".")[0] == library for n in names):
                found.add(name_of(path))
    return found


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("jax", {"cluster", "sums", "kernel", "mesh", "programs", "compute", "verification", "devices"}),
        ("rich", {"consoles", "explain", "check", "progress"}),
        ("typer", {"cli", "options", "values"}),
        ("click", set()),
        ("orjson", {"readers", "writers", "explain", "check"}),
    ],
)
def test_a_library_is_imported_only_where_it_belongs(library, allowed):
    assert importers(library) <= allowed


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_what_stands_before_it(path):
    me = name_of(path)
    if me not in ORDER:
        return  # the package itself and the command line stand above all
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "specdec_cli" and len(parts) > 1 and parts[1] in ORDER:
            assert ORDER.index(parts[1]) <= ORDER.index(me), f"{me} imports {parts[1]}"


def test_importing_the_package_imports_neither_jax_nor_numpy():
    code = "import sys, specdec_cli; print(sorted({'jax', 'numpy', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_fits_in_a_readers_head(path):
    assert len(path.read_text().splitlines()) <= 350


def test_the_top_level_holds_what_the_design_names():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in listed.splitlines()}
    named = {"pyproject.toml", "README.md", "Makefile", "specdec_cli", "samples", "tests"}
    assert {name for name in top if not name.startswith(".")} <= named


def test_the_lower_bounds_that_ci_tries_are_those_of_the_package():
    bounds = set(re.findall(r"\"(\w+>=[\d.]+)\",", (ROOT / "pyproject.toml").read_text().split("optional-dep")[0]))
    tried = set(re.findall(r"^(\w+==[\d.]+)$", (ROOT / ".ci" / "lowest.txt").read_text(), re.MULTILINE))
    assert {bound.replace(">=", "==") for bound in bounds if not bound.startswith("hatchling")} == tried
