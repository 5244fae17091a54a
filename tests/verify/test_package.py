"""What the verifier is made of."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import lipcompile_verify

PACKAGE = Path(lipcompile_verify.__file__).parent
OWN = {"lipcompile_verify", "mpmath"}


def imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_it_imports_the_standard_library_and_mpmath_alone() -> None:
    for path in PACKAGE.glob("*.py"):
        assert imported(path) <= OWN | sys.stdlib_module_names, path.name


def test_importing_it_loads_nothing_of_the_compiler() -> None:
    banned = ("lipcompile", "lipcompile_torch", "sympy", "numpy", "torch", "onnx", "networkx")
    program = f"import sys, lipcompile_verify; print([name for name in {banned} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_global_context_of_mpmath_is_left_alone() -> None:
    import mpmath

    from .models import drawn

    before = mpmath.mp.prec, mpmath.iv.prec
    lipcompile_verify.verify(drawn(1))
    assert (mpmath.mp.prec, mpmath.iv.prec) == before
