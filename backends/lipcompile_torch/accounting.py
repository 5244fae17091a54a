"""`lipcompile_privacy.accounting`, under the name by which it was imported before."""

from lipcompile_privacy.accounting import *  # noqa: F403
from lipcompile_privacy.accounting import __all__ as __all__
