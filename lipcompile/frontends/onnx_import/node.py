"""One node of an ONNX graph, with its attributes decoded."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lipcompile.diagnostics import Refusal

if TYPE_CHECKING:
    from onnx import NodeProto

# How torch names the tensors of a module: features.0.weight belongs to features.0.
_OF_MODULE = re.compile(r"^(\w+(?:\.\w+)*)\.(?:weight|bias|running_mean|running_var)$", re.ASCII)


def module_of(tensor: str) -> str | None:
    """Return the module that a stored tensor belongs to, if its name says so."""
    found = _OF_MODULE.match(tensor)
    return found.group(1) if found else None


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node. `label` is what diagnostics call it, `name` what the graph calls it."""

    proto: NodeProto
    label: str
    name: str
    attributes: Mapping[str, Any]

    @property
    def op_type(self) -> str:
        """The operator."""
        return self.proto.op_type

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs; the empty name is one that is not asked for."""
        return tuple(self.proto.output)

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute; raises Refusal if it is something else."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise Refusal("LIP102", f"the attribute {name} of {self.op_type} must be an integer")
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """Return a list attribute, None if it is absent; raises Refusal if it is something else."""
        value = self.attributes.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, int) for item in value):
            raise Refusal("LIP102", f"the attribute {name} of {self.op_type} must be a list of integers")
        return tuple(value)

    def number(self, name: str, default: Fraction) -> Fraction:
        """Return a number attribute, exactly; raises Refusal if it is not finite."""
        value = self.attributes.get(name, default)
        try:
            return Fraction(value)
        except (TypeError, ValueError, OverflowError):
            raise Refusal("LIP102", f"the attribute {name} of {self.op_type} must be a finite number") from None

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def describe(proto: NodeProto, stored: Collection[str]) -> OnnxNode:
    """Decode a node; `stored` are the names of stored tensors, whose module gives the node its name."""
    from onnx import helper

    modules = [module for tensor in proto.input if tensor in stored and (module := module_of(tensor))]
    module = modules[0] if modules else ""
    first = next((output for output in proto.output if output), proto.op_type)
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute}
    label = module or proto.name or first
    name = module or proto.name.strip("/") or proto.op_type.lower()
    return OnnxNode(proto, label, name, attributes)
