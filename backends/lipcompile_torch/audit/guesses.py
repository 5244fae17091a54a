"""`lipcompile_privacy.guesses`, under the name by which it was imported before."""

from lipcompile_privacy.guesses import Claim as Claim
from lipcompile_privacy.guesses import Guesses as Guesses
from lipcompile_privacy.guesses import largest_refuted as largest_refuted
from lipcompile_privacy.guesses import p_value as p_value
from lipcompile_privacy.guesses import refuted as refuted
