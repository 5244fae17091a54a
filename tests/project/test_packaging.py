"""What is installed, and what importing it loads."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from importlib.metadata import entry_points
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import pytest

import lipcompile
from lipcompile.emitters.torch.emit import emit

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUNTIME = tomllib.loads((ROOT / "backends/pyproject.toml").read_text())
PLACES = {"lipcompile.grammar": ROOT / "grammar"}
# Of these an emitted module needs nothing: neither to train nor to draw noise.
COMPILER = (
    "lipcompile",
    "click",
    "dp_accounting",
    "jinja2",
    "lark",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "rich",
    "scipy",
)

ALL_OF_PRIVACY = ", ".join(
    ".".join(path.relative_to(ROOT / "backends").with_suffix("").parts)
    for path in (ROOT / "backends/lipcompile_privacy").rglob("*.py")
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=False)


def place(package: str) -> Path:
    if package in PLACES:
        return PLACES[package]
    root = ROOT / "backends" if package.startswith("lipcompile_") else ROOT
    return root.joinpath(*package.split("."))


def test_every_package_on_disk_is_listed_and_installed() -> None:
    listed = CONFIG["tool"]["setuptools"]["packages"]
    found = {
        ".".join(path.parent.relative_to(root).parts)
        for root, top in (
            (ROOT, "lipcompile"),
            (ROOT / "backends", "lipcompile_privacy"),
            (ROOT / "backends", "lipcompile_torch"),
            (ROOT / "backends", "lipcompile_verify"),
        )
        for path in (root / top).rglob("__init__.py")
    }
    assert set(listed) == found | {"lipcompile.grammar"}
    for package in listed:
        assert (place(package) / "__init__.py").is_file()


def test_the_runtime_is_built_of_the_same_sources() -> None:
    """Two distributions have the packages of the runtime; one of them needs numpy and torch alone."""
    (whole,), (part,) = (config["tool"]["setuptools"]["ext-modules"] for config in (CONFIG, RUNTIME))
    for key in ("sources", "depends"):
        part[key] = [f"backends/{path}" for path in part[key]]
    assert part == whole
    assert RUNTIME["project"]["version"] == CONFIG["project"]["version"]
    needed = {name.partition(">")[0] for name in RUNTIME["project"]["dependencies"]}
    assert needed == {"numpy", "torch"}


def test_an_emitted_module_trains_without_the_compiler_and_what_it_needs(tmp_path: Path) -> None:
    emitted = tmp_path / "emitted.py"
    emitted.write_text(emit(lipcompile.check(str(ROOT / "examples/mlp.lip"))), encoding="utf-8")
    program = f"""
import sys
sys.modules.update(dict.fromkeys({COMPILER!r}))
sys.path.insert(0, {str(tmp_path)!r})
import torch
from emitted import Model
from lipcompile_torch import PrivacyEngine

module = Model()
data = torch.utils.data.TensorDataset(torch.randn(64, *module.input_shape), torch.zeros(64, dtype=torch.long))
module, optimizer, loader = PrivacyEngine().make_private(
    module=module,
    optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    data_loader=torch.utils.data.DataLoader(data, batch_size=32),
    noise_multiplier=1.0,
)
for x, y in loader:
    optimizer.zero_grad()
    module.criterion(module(x), y).backward()
    optimizer.step()
print("trained")
"""
    result = run(program)
    assert result.stdout.strip() == "trained", result.stderr


def test_the_version_is_the_same_wherever_it_stands() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert CONFIG["project"]["version"] == lipcompile.__version__ == newest[1]


def test_package_data_exists() -> None:
    for package, patterns in CONFIG["tool"]["setuptools"]["package-data"].items():
        for pattern in patterns:
            assert list(place(package).glob(pattern)), f"{package} ships no {pattern}"


def test_all_native_code_is_compiled() -> None:
    (extension,) = CONFIG["tool"]["setuptools"]["ext-modules"]
    folder = ROOT / "backends/lipcompile_torch/native/kernels"
    assert set(extension["sources"]) == {str(path.relative_to(ROOT)) for path in folder.glob("*.c")}
    assert set(extension["depends"]) == {str(path.relative_to(ROOT)) for path in folder.glob("*.h")}


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_native_code_is_there_where_it_can_be_compiled() -> None:
    """A build that fails is passed over in silence, or users without a compiler could not install."""
    found = run("from lipcompile_torch import native; print(native.why_missing)")
    help_line = "`pip install -v -e .` says what the compiler has against it"
    assert found.stdout == "None\n", f"there is a C compiler, and no native code: {help_line}\n{found.stdout}"


def test_the_grammar_is_readable_as_package_data() -> None:
    assert "start:" in files("lipcompile.grammar").joinpath("lip.lark").read_text(encoding="utf-8")


def test_a_checkout_reads_its_grammar_whatever_is_installed() -> None:
    # `python -m` puts the working directory first, so that here the checkout stands before what is installed.
    program = [sys.executable, "-m", "lipcompile", "check", "examples/mlp.lip"]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_the_backend_is_found_by_its_entry_point() -> None:
    (point,) = entry_points(group="lipcompile.backends")
    assert point.name == "torch"
    assert callable(point.load().emit)


@pytest.mark.parametrize("module", ["grammar", "backends", "tests", "examples"])
def test_nothing_else_is_importable(module: str) -> None:
    assert run(f"import {module}").returncode != 0


@pytest.mark.parametrize(
    ("program", "banned"),
    [
        (
            "import lipcompile.pipeline, lipcompile.frontends.lip.model",
            ("torch", "onnx", "onnxruntime", "dp_accounting", "jinja2", "matplotlib"),
        ),
        ("import lipcompile.reports.document, lipcompile.reports.json_report", ("jinja2", "matplotlib", "torch")),
        ("import lipcompile_torch.accounting", ("torch", "lipcompile", "dp_accounting")),
        ("import lipcompile_privacy.factorisation", ("torch", "lipcompile", "lipcompile_torch", "numpy", "scipy")),
        (
            f"import {ALL_OF_PRIVACY}",
            ("torch", "lipcompile", "lipcompile_torch", "dp_accounting", "scipy"),
        ),
        ("import lipcompile.emitters.torch.emit", ("torch",)),
        (
            "import lipcompile.tables.guess, lipcompile.tables.schema_file, lipcompile.tables.encode",
            ("torch", "pandas", "pyarrow"),
        ),
        ("import lipcompile.emitters.onnx", ("onnx",)),
        ("import lipcompile.emitters.onnx.emit", ("torch", "onnxruntime")),
        ("from lipcompile_torch import LipschitzModule, PrivacyEngine, layers, losses", ("lipcompile", "onnx")),
        ("import lipcompile_torch.train.training", ("lipcompile", "onnx")),
    ],
)
def test_imports_stay_inside_their_boundary(program: str, banned: tuple[str, ...]) -> None:
    result = run(f"{program}\nimport sys\nprint([m for m in {banned!r} if m in sys.modules])")
    assert result.stdout.strip() == "[]", result.stderr


def test_every_module_that_had_its_home_in_runtime_has_another() -> None:
    """Their names are looked up when they are used, so that a home that is gone would be found late."""
    homes = vars(import_module("lipcompile_torch.runtime"))["_HOMES"]
    assert len(homes) == 86
    assert [home for home in homes.values() if find_spec(home) is None] == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lipcompile_torch.accounting", "lipcompile_privacy.accounting"),
        ("lipcompile_torch.factorisation", "lipcompile_privacy.factorisation"),
        ("lipcompile_torch.runtime.guesses", "lipcompile_privacy.guesses"),
        ("lipcompile_torch.runtime.ledger", "lipcompile_privacy.ledger"),
        *(
            (f"lipcompile_torch.runtime.{module}", "lipcompile_privacy.errors")
            for module in ("certificate", "checkpoint", "checks", "data", "ledger", "sampling")
        ),
        ("lipcompile_torch.runtime.loss_clipping", "lipcompile_torch.train.loss_clipping"),
        ("lipcompile_torch.runtime.noise", "lipcompile_torch.noise.mechanism"),
        ("lipcompile_torch.runtime.guessing", "lipcompile_torch.audit.game"),
        ("lipcompile_torch.runtime.numbers", "lipcompile_torch.certify.intervals"),
    ],
)
def test_old_import_paths_lead_to_the_same_objects(old: str, new: str) -> None:
    there, here = import_module(old), vars(import_module(new))
    names = [name for name in here if not name.startswith("_") and hasattr(there, name)]
    own = [name for name in names if str(getattr(here[name], "__module__", "")).startswith("lipcompile")]
    assert own
    assert all(getattr(there, name) is here[name] for name in own)
