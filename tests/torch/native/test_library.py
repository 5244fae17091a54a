"""Kernels are called, and structures laid out, as the headers say: ctypes would not notice anything else."""

from __future__ import annotations

import re
from ctypes import ArgumentError, c_char_p, c_double, c_float, c_int, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import pytest
from lipcompile_torch import native
from lipcompile_torch.native import library

KERNELS = Path(__file__).parents[3] / "backends/lipcompile_torch/native/kernels"
NAMES = ("kernels.h", "outer_products.h", "example_gradients.h", "table.c")
TEXT = re.sub(r"/\*.*?\*/", "", "".join((KERNELS / name).read_text() for name in NAMES), flags=re.DOTALL)
TABLE = re.findall(r'KERNEL\((\w+), "([^"]*)"\)', TEXT)
WORDS = {"size_t": "n", "uint64_t": "n", "int": "i", "float": "f", "double": "d", "void": ""}
OF_KIND = {c_void_p: "p", c_char_p: "p", c_size_t: "n", c_int: "i", c_float: "f", c_double: "d"}
STRUCTURES = {
    "noisy_part": library.NoisyPart,
    "word_source": library.WordSource,
    "fingerprint_key": library.FingerprintKey,
    "compared": library.Compared,
    "kernel_stack": library.KernelStack,
    "operand": library.Operand,
    "gradient_plan": library.GradientPlan,
    "gradient_scales": library.GradientScales,
    "kernel": library._Kernel,
    "description": library._Description,
}


def kind(declared: str) -> str:
    """The letter of `const float *entries`."""
    return "p" if "*" in declared else WORDS[declared.split()[-2]]


@pytest.mark.parametrize(("name", "kinds"), TABLE)
def test_the_kinds_of_arguments_are_those_of_the_header(name: str, kinds: str) -> None:
    found = re.search(rf"^(\w+) {name}\(([^)]*)\);", TEXT, re.MULTILINE)
    assert found is not None
    arguments = "".join(map(kind, found[2].split(",")))
    result = WORDS[found[1]]
    assert kinds == (f"{arguments}>{result}" if result else arguments)


def fields(name: str) -> list[tuple[str, str]]:
    """Name and type of each field of a structure in C."""
    found = re.search(r"typedef struct \{([^}]*)\} " + name + ";", TEXT)
    assert found is not None
    listed = []
    for declaration in filter(None, map(str.strip, found[1].replace("(*code)(void)", "*code").split(";"))):
        base = re.sub(r"[\s*]*\w+$", "", declaration.split(",")[0])
        for declared in declaration.split(","):
            listed.append((declared.split()[-1].strip("*"), f"{base} *" if "*" in declared else base))
    return listed


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_have_the_fields_of_the_header(name: str) -> None:
    mirrored: list[Any] = list(STRUCTURES[name]._fields_)
    expected = fields(name)
    assert [field for field, *_ in mirrored] == [field for field, _ in expected]
    for (_, found, *_), (_, declared) in zip(mirrored, expected, strict=True):
        if declared in STRUCTURES:
            assert found is STRUCTURES[declared]
        elif found in OF_KIND:
            assert OF_KIND[found] == kind(f"{declared} name")
        else:
            assert f"const {found._type_.__name__.strip('_').lower()} *" == declared


@pytest.mark.skipif(native.kernels is None, reason="the package was installed without a compiler")
def test_a_kernel_refuses_what_its_kinds_do_not_allow() -> None:
    assert native.kernels is not None
    for given in ((0, 1, 2), (0, 1.5, 0, 0, 1)):
        with pytest.raises((TypeError, ArgumentError), match="argument"):
            native.kernels.row_norms(*given)
    assert not hasattr(native.kernels, "rows_norm")
