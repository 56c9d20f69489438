"""The direction of dependency: a layer imports only from lower-numbered ones. Imports are parsed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "gasweep"

LAYERS = {
    "errors": 0,
    "checkout": 0,
    "batching": 1,
    "analysis": 1,
    "config": 2,
    "results": 2,
    "data": 3,
    "tasks": 3,
    "tracking": 3,
    "training": 4,
    "scheduling": 5,
    "report": 5,
    "cli": 6,
    "__main__": 7,
}

# third-party package -> where it may be imported: a package of ours, or one file
THIRD_PARTY = {
    "numpy": {"analysis", "data", "tasks", "training", "report"},
    "scipy": {"analysis"},
    "omegaconf": {"config/load.py", "config/axes.py"},
    "yaml": {"config/load.py"},
    "torch": {"tasks", "training"},
    "sklearn": {"tasks/digits.py"},
    "ray": {"scheduling/ray_backend.py", "scheduling/backends/ray_backend.py"},
    "wandb": {"tracking/wandb_tracker.py"},
    "matplotlib": {"report/figures.py", "report/plots.py", "report/bench_plot.py"},
    "pyarrow": {"results/export.py", "results/parquet.py"},
    "rich": {"cli"},
}


def modules():
    return sorted(ROOT.rglob("*.py"))


def imported(path):
    """Dotted names a file imports anywhere, type-checking blocks included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    own = layer_of(path)
    if own == "__init__":
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "gasweep" and len(parts) > 1 and parts[1] in LAYERS and parts[1] != own:
            assert LAYERS[parts[1]] < LAYERS[own], f"{path} ({own}) imports {name}"


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_third_party_packages_stay_where_they_belong(path):
    where = str(path.relative_to(ROOT))
    for name in imported(path):
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or top == "gasweep":
            continue
        assert top in THIRD_PARTY, f"{where} imports {top}, which no layer may"
        allowed = THIRD_PARTY[top]
        assert where in allowed or layer_of(path) in allowed, f"{where} may not import {top}"


@pytest.mark.parametrize("package", ["torch", "ray", "wandb", "matplotlib", "omegaconf", "numpy"])
def test_import_gasweep_is_light(package):
    code = f"import sys, gasweep; assert {package!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_package_says_what_lives_there():
    for init in ROOT.rglob("__init__.py"):
        if init.parent.name not in ("assets", "shipped"):
            assert ast.get_docstring(ast.parse(init.read_text())), f"{init} has no docstring"


def test_one_file_opens_figures():
    """Drawing code gets its figure from there: saved, cleared, and never in pyplot's registry."""
    opens = [path for path in modules() if any(n.startswith("matplotlib.backends") for n in imported(path))]
    assert [str(path.relative_to(ROOT)) for path in opens] == ["report/figures.py"]
    assert not any("matplotlib.pyplot" in imported(path) for path in modules())
