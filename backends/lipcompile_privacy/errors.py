"""The errors of private training that users can fix, whichever part raises them, and a check of numbers."""

from __future__ import annotations


class BudgetError(ValueError):
    """A privacy budget that no noise can meet, that is spent, or that an accountant cannot compute."""


class FactorisationError(ValueError):
    """A strategy that no theorem covers, data that is no strategy, or a stream used past its end."""


class SamplingError(ValueError):
    """A loader that cannot be sampled as the accounting assumes, or was not used as it must be."""


class DataError(ValueError):
    """Data that cannot be trained on; the message says what is wrong with it and what would be right."""


class LedgerError(RuntimeError):
    """A ledger that is damaged, in use by another process, or that belongs to something else."""


class CheckpointError(RuntimeError):
    """A file that is no checkpoint, or none of this module."""


class PrivacyError(RuntimeError):
    """A step that would not be the mechanism that is accounted. Nothing was released, no parameter changed."""


class CertificateError(PrivacyError):
    """A certificate proves less than it claims, or is another module's. No step was taken."""


def check_number(name: str, value: object, *, whole: bool = False) -> None:
    """Raise TypeError unless a value is a number, or a whole one; a text is none, whatever it says."""
    if not hasattr(value, "__index__" if whole else "__float__"):
        raise TypeError(f"{name} must be a {'whole ' if whole else ''}number, not {value!r}")
