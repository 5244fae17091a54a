"""Native code under the compilers that are there: no warnings, and the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[3]
(MODULE,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
KERNELS = ROOT / "backends/lipcompile_torch/native/kernels"
FLAGS = [*MODULE["extra-compile-args"], "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}"]

# What runs a program that a compiler makes, and how it is linked for that.
RUNNERS = {"gcc": [], "clang": [], "aarch64-linux-gnu-gcc": ["qemu-aarch64"]}
LINKED = {"aarch64-linux-gnu-gcc": ["-static"]}

pytestmark = pytest.mark.parametrize("compiler", RUNNERS)


def find(program: str) -> str:
    """Where a program is; skips the test where there is none, except where CI is set."""
    path = shutil.which(program)
    if path is None and "CI" not in os.environ:
        pytest.skip(f"there is no {program}: scripts/install-test-tools installs it")
    assert path, f"there is no {program}"
    return path


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stderr}"
    return done.stdout


def test_native_code_compiles_without_a_warning(compiler: str, tmp_path: Path) -> None:
    """With Python's headers, those of this machine: nothing is linked."""
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        pytest.skip("there are no headers of Python")
    for source in MODULE["sources"]:
        run(find(compiler), *FLAGS, "-fPIC", f"-I{headers}", "-c", ROOT / source, "-o", tmp_path / "object.o")


@cache
def bits(compiler: str) -> str:
    """What `kernels.c` prints, compiled by this."""
    sources = [source for source in sorted(KERNELS.glob("*.c")) if source.name != "module.c"]
    with TemporaryDirectory() as folder:
        program = Path(folder, "kernels")
        driver = Path(__file__).with_name("kernels.c")
        run(find(compiler), *FLAGS, *sources, driver, "-o", program, *LINKED.get(compiler, []), "-lm")
        return run(*map(find, RUNNERS[compiler]), program)


def test_every_compiler_and_processor_gives_the_same_bits(compiler: str) -> None:
    """gcc and clang on this processor, and 64-bit ARM: its program is emulated."""
    assert len(bits(compiler).splitlines()) == 17
    assert bits(compiler) == bits("gcc")
