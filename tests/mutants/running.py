"""Runs tests against a mutant, in a copy of the sources: the checkout is never changed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = Path("backends/lipcompile_torch/native/kernels")
_COPIED = ("lipcompile", "backends", "grammar", "tests", "examples", "benchmarks", "pyproject.toml")
_LIMIT = 900  # seconds that a mutant's tests may take; one that hangs is seen as well
# Tests run in processes that are forked from one that has imported what takes seconds.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload(["torch", "pytest", "mpmath", "numpy", "sympy"])


def _run(folder: str, arguments: list[str]) -> None:
    """Run pytest in a folder, on the packages that are there."""
    os.chdir(folder)
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "__mp_main__")]:
        del sys.modules[name]  # of the checkout
    paths = [folder, str(Path(folder, "backends"))]
    sys.path[:0] = paths
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        sys.exit(int(pytest.main(arguments)))


class Workshop:
    """A copy of the sources, with room for one mutant at a time.

    Args:
        folder: an empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, folder / name)

    def passes(self, tests: Sequence[str]) -> bool:
        """Whether all tests pass; stops at the first that does not.

        Raises:
            RuntimeError: there is no such test.
        """
        arguments = ["-x", "-q", "-p", "no:cacheprovider", *(str(self.folder / test) for test in tests)]
        process = _PROCESSES.Process(target=_run, args=(str(self.folder), arguments))
        process.start()
        process.join(_LIMIT)
        if process.is_alive():
            process.kill()
            return False
        if process.exitcode in (pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"there is nothing to run in {' '.join(tests)}")
        return process.exitcode == pytest.ExitCode.OK

    def survives(self, file: str, mutated: str, tests: Sequence[str]) -> bool:
        """Whether tests pass where this file has another content; of native code, which is built for it.

        A mutant that cannot be built, or loaded, does not survive.
        """
        path = self.folder / file
        before = path.read_text(encoding="utf-8")
        path.write_text(mutated, encoding="utf-8")
        try:
            return (path.suffix != ".c" or self._built()) and self.passes(tests)
        finally:
            path.write_text(before, encoding="utf-8")

    def _built(self) -> bool:
        """Build the kernels in place, as pyproject.toml says; return whether that was possible."""
        settings = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))
        [module] = settings["tool"]["setuptools"]["ext-modules"]
        built = self.folder / KERNELS.parent / "_kernels.abi3.so"
        command = [os.environ.get("CC", "cc"), "-shared", "-fPIC", *module["extra-compile-args"]]
        command += [*module["sources"], "-o", str(built), "-lm"]
        built.unlink(missing_ok=True)
        return subprocess.run(command, cwd=self.folder, capture_output=True, check=False).returncode == 0
