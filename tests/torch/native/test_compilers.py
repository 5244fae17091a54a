"""Native code under the compilers that are there: no warnings, and the same bits."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

ROOT = Path(__file__).parents[3]
(MODULE,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
KERNELS = ROOT / "backends/lipcompile_torch/native/kernels"
SOURCES = [ROOT / source for source in MODULE["sources"]]
FLAGS = [*MODULE["extra-compile-args"], "-Wall", "-Wextra", "-Werror", f"-I{KERNELS}"]

# What runs a program that a compiler makes, and how it is linked for that.
RUNNERS = {"gcc": [], "clang": [], "aarch64-linux-gnu-gcc": ["qemu-aarch64"]}
LINKED = {"aarch64-linux-gnu-gcc": ["-static"]}

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("compiler", RUNNERS)]


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


@cache
def compiled(compiler: str, source: Path) -> bytes:
    """The object file of a source, without a warning."""
    with TemporaryDirectory() as folder:
        made = Path(folder, "object.o")
        run(find(compiler), *FLAGS, "-fPIC", "-c", source, "-o", made)
        return made.read_bytes()


def test_native_code_compiles_without_a_warning(compiler: str) -> None:
    for source in SOURCES:
        compiled(compiler, source)


@cache
def bits(compiler: str) -> str:
    """What `kernels.c` prints, compiled by this."""
    with TemporaryDirectory() as folder:
        program, objects = Path(folder, "program"), []
        for source in (*SOURCES, Path(__file__).with_name("kernels.c")):
            objects.append(Path(folder, f"{source.stem}.o"))
            objects[-1].write_bytes(compiled(compiler, source))
        run(find(compiler), *FLAGS, *objects, "-o", program, *LINKED.get(compiler, []), "-lm")
        return run(*map(find, RUNNERS[compiler]), program)


def test_every_compiler_and_processor_gives_the_same_bits(compiler: str) -> None:
    """gcc and clang on this processor, and 64-bit ARM: its program is emulated."""
    assert len(bits(compiler).splitlines()) == 17
    assert bits(compiler) == bits("gcc")
