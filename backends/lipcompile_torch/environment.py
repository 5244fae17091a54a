"""The environment of the runtime: native code, generators of noise, threads and devices."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from lipcompile_privacy.ledger import PHILOX

from . import native
from .certify.precision import single_is_kept
from .noise import processor


def describe() -> dict[str, Any]:
    """Return facts for a bug report, as JSON has them: numbers, strings, True, False and None.

    If torch fails to answer, the error replaces the fact.
    """
    return {
        "native_code": _native_code(),
        "noise": {"cpu": processor.generator(None), "made_by": _maker(), "gpu": PHILOX},
        "threads": torch.get_num_threads(),
        "gpus": _answer(_gpus),
        "cuda": torch.version.cuda,
        "tf32": _answer(lambda: not single_is_kept(torch.device("cuda"))),
    }


def _native_code() -> dict[str, Any]:
    if native.kernels is None:
        return {"loaded": False, "why_not": native.why_missing}
    code = native.kernels.about
    ciphers = ["VAES"] if code.has_wide_aes else ["AES"] if code.has_aes else []
    instructions = [code.instructions.decode(), *ciphers]
    return {"loaded": True, "compiler": code.compiler.decode(), "instructions": instructions}


def _maker() -> str:
    """Who makes the random words of noise on processors."""
    if native.has_aes():
        return "native code"
    return "package cryptography" if find_spec("cryptography") else "nothing: the package cryptography is missing"


def _gpus() -> list[str]:
    if torch.backends.mps.is_available():
        return ["mps"]
    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _answer(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except Exception as error:
        return f"unknown: {type(error).__name__}: {error}"
