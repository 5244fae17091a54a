"""Writing certificates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lipcompile.cli.output import write_text

if TYPE_CHECKING:
    from lipcompile.derivation import Derivation


def write_certificate(path: Path, derivation: Derivation) -> None:
    """Write the certificate of an accepted model; raises InputError if it leaves a number open."""
    from lipcompile.certificates import certificate, encode

    write_text(path, encode(certificate(derivation)).decode())
