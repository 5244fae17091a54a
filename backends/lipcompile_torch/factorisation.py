"""`lipcompile_privacy.factorisation`, under the name by which it was imported before."""

from lipcompile_privacy.factorisation import *  # noqa: F403
from lipcompile_privacy.factorisation import __all__ as __all__
