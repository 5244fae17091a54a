"""Names that are taken: by the emitted module's attributes and its `forward`, and by formulas.

A test compares the attributes with the runtime's base class.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field

_ATTRIBUTES = """
T_destination add_module apply bfloat16 bounds buffers call_super_init certificate certified_norms
check_parameters children clip_features clip_gradient clip_input clip_lengths clip_loss_gradient
clipped_parameters clips compile cpu criterion cuda double dump_patches eval extra_repr features_norm
features_shape fill_ float forget_certificates forward frozen_features gate get_buffer get_extra_state
get_parameter get_submodule given_rows gradient_bounds guard_layers half input_norm input_parts input_shape
input_tokens input_trusted ipu last_dense lipschitz load_initial_weights load_state_dict loss_clip loss_limit
loss_lipschitz modules moved_bounds mtia named_buffers named_children named_modules named_parameters
noise_strategy normaliser on_features on_views own_loss own_network parameters per_example_loss project_
projection_slack register_backward_hook register_buffer register_forward_hook register_forward_pre_hook
register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
register_state_dict_pre_hook release requires_grad_ set_extra_state set_submodule share_memory slope split_output
state_dict takes_features takes_views to to_empty train training type unclipped_bounds xpu zero_grad
"""
# An emitted `forward` has one local variable per value; these names it uses for something else.
_FORWARD = ("self", "torch", "functional", "F")
RESERVED = frozenset([*_ATTRIBUTES.split(), *_FORWARD])

# Names that formulas give to derived quantities: a parameter called so would be taken for one of them.
_DERIVED = ("L", "L_C", "L_R", "m", "t", "T")
_DERIVED_NAME = re.compile(r"(?:[XKRMTqacg]|[Gl]\d*)_.*")


def is_derived(name: str) -> bool:
    """Whether formulas may use `name` for something that they derive."""
    return name in _DERIVED or _DERIVED_NAME.fullmatch(name) is not None


def identifier(name: str) -> str:
    """Return `name` as an identifier that an emitted module may use for a layer."""
    base = "".join(c if c.isalnum() and c.isascii() else "_" for c in name) or "value"
    if base[0].isdigit() or base[0] == "_":
        base = f"n{base}" if base[0] == "_" else f"n_{base}"
    return f"{base}_" if keyword.iskeyword(base) or base in RESERVED else base


@dataclass(slots=True)
class Names:
    """Names that are taken, and what the next one is called that would be equal."""

    _taken: set[str] = field(default_factory=set)
    _last: dict[str, int] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        """Return `name`, or `name` with the least number from 2 that makes it new, and reserve it."""
        candidate, self._last[name] = self._next(name)
        self._taken.add(candidate)
        return candidate

    def peek(self, name: str) -> str:
        """Return what `fresh` would, and reserve nothing."""
        return self._next(name)[0]

    def _next(self, name: str) -> tuple[str, int]:
        candidate, count = name, self._last.get(name, 1)
        while candidate in self._taken:
            count += 1
            candidate = f"{name}_{count}"
        return candidate, count
