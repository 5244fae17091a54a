"""Changes of ONNX models: of nodes, edges, attributes, tensors, types and declarations, and of any field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.checker import ValidationError

from lipcompile.frontends.onnx.operators import IMPORTERS

INTEGERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    64,
    -2,
    255,
    4096,
    2**31 - 1,
    2**31,
    -(2**31),
    2**40,
    2**62,
    -(2**62),
    2**63 - 1,
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-30, 1e30, 3.4e38, math.inf, -math.inf, math.nan)
TEXTS = (
    "",
    "x",
    "y",
    "w",
    "h",
    "SAME_UPPER",
    "VALID",
    "NOTSET",
    "linear",
    "cubic",
    "nearest",
    "reflect",
    "wrap",
    "tanh",
)
ODD_TEXTS = (
    "\x1b]0;x\x07",
    "../../etc/passwd",
    "/dev/zero",
    "a" * 5000,
    "é\u202e",
    "__import__('os')",
    "%s{0}",
    "\x00",
)
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.example", "com.microsoft")
OPS = (
    *IMPORTERS,
    *(
        "Range",
        "Tile",
        "ConstantOfShape",
        "Pow",
        "Sqrt",
        "Exp",
        "Log",
        "If",
        "Loop",
        "Scan",
        "LSTM",
        "GRU",
        "NonZero",
    ),
    *(
        "Einsum",
        "ReduceProd",
        "Equal",
        "Where",
        "Trilu",
        "OneHot",
        "Size",
        "Mystery",
        "BatchNormalization",
        "Cast",
    ),
)
KINDS = (*range(29), 99, -1)
METADATA = {
    "lipcompile.input_norm": ("1", "0", "-1", "nan", "1e999999999", "1/3", "x", "9" * 5000, "inf", "1e-300"),
    "lipcompile.loss": (
        "cross_entropy",
        "cross_entropy:temperature=0",
        "hinge",
        "nll:",
        "(((((",
        "cosine:floor=1e9999999999",
    ),
}

# The share of changes that the format mostly forbids.
ROUGH = 0.35

Model = onnx.ModelProto
Change = Callable[[Random, Model], None]


def changed(random: Random, content: bytes, other: bytes) -> bytes:
    """Return the model after one to six changes; nodes of `other` may come into it."""
    model = onnx.load_model_from_string(content)
    for _ in range(random.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        try:
            if random.random() < 0.2:
                _graft(random, model, onnx.load_model_from_string(other))
            else:
                random.choice(_CHANGES if random.random() < ROUGH else _SOFT)(random, model)
        except (ValueError, TypeError):  # a value that protobuf does not take
            continue
    mutant: bytes = model.SerializeToString()
    return mutant


# Nodes and edges


def _node(random: Random, model: Model) -> onnx.NodeProto:
    node: onnx.NodeProto = random.choice(model.graph.node) if model.graph.node else model.graph.node.add()
    return node


def _earlier(random: Random, model: Model, node: onnx.NodeProto) -> str:
    """Return a tensor that a node may read."""
    names = [entry.name for entry in (*model.graph.initializer, *model.graph.input)]
    for other in model.graph.node:
        if other == node:
            break
        names += other.output
    return random.choice(names) if names else ""


def _name(random: Random, model: Model) -> str:
    """Return a name of the graph, mostly."""
    graph = model.graph
    names: list[str] = [name for node in graph.node for name in (*node.input, *node.output)]
    names += [entry.name for entry in (*graph.initializer, *graph.input, *graph.output)]
    return random.choice([*names, *names, *names, *TEXTS, random.choice(ODD_TEXTS)])


def _delete_node(random: Random, model: Model) -> None:
    del model.graph.node[random.randrange(len(model.graph.node))]


def _repeat_node(random: Random, model: Model) -> None:
    """Put a node into the graph again, behind itself, with results of other names: a chain of equal nodes."""
    made = _node(random, model)
    for index in range(random.choice((1, 1, 2, 30))):
        copy = model.graph.node.add()
        copy.CopyFrom(made)
        copy.input[:] = [*made.output[:1], *made.input[1:]]
        copy.output[:] = [f"{name}_{index}" for name in made.output]
        made = copy


def _swap_nodes(random: Random, model: Model) -> None:
    nodes = list(model.graph.node)
    random.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _operator(random: Random, model: Model) -> None:
    """Make a node one of another operator, with the attributes that this has as well."""
    node = _node(random, model)
    node.op_type = random.choice(OPS)
    known = _declared(node.op_type)
    kept = [attribute for attribute in node.attribute if attribute.name in known]
    del node.attribute[:]
    node.attribute.extend(kept)


def _declared(op_type: str) -> dict[str, int]:
    """Return the kinds of the attributes that the newest version of an operator takes."""
    if not onnx.defs.has(op_type):
        return {}
    attributes: Any = onnx.defs.get_schema(op_type).attributes
    return {name: int(entry.type) for name, entry in attributes.items()}


def _domain(random: Random, model: Model) -> None:
    _node(random, model).domain = random.choice(DOMAINS)


def _edge(random: Random, model: Model) -> None:
    """Change what a node reads or makes."""
    node = _node(random, model)
    names = node.output if random.random() < 0.1 else node.input
    at = random.randrange(len(names) + 1)
    name = _earlier(random, model, node) if random.random() < 0.8 else _name(random, model)
    if at == len(names):
        names.append(name)
    elif random.random() < 0.2:
        del names[at]
    else:
        names[at] = name


def _graft(random: Random, model: Model, other: Model) -> None:
    """Insert a node of another model between two of this one, with its weights."""
    if not other.graph.node or not model.graph.node:
        return
    new, before = random.choice(other.graph.node), _node(random, model)
    at = list(model.graph.node).index(before) + 1
    copy = onnx.NodeProto()
    copy.CopyFrom(new)
    copy.input[:] = [*before.output[:1], *new.input[1:]]
    copy.output[:] = [f"new_{name}" for name in new.output]
    stored = {tensor.name for tensor in model.graph.initializer}
    model.graph.initializer.extend(
        [t for t in other.graph.initializer if t.name in copy.input and t.name not in stored]
    )
    for node in list(model.graph.node)[at:]:
        node.input[:] = [copy.output[0] if name in before.output[:1] else name for name in node.input]
    model.graph.node.insert(at, copy)


# Attributes


def _attribute(random: Random, model: Model) -> None:
    """Change the value of an attribute, or give one that the operator takes."""
    node = _node(random, model)
    if node.attribute and random.random() < 0.6:
        _nearby(random, random.choice(node.attribute))
        return
    given = {attribute.name for attribute in node.attribute}
    free = {name: kind for name, kind in _declared(node.op_type).items() if name not in given}
    if free:
        name = random.choice(list(free))
        value = _VALUES.get(free[name], _value)(random)
        node.attribute.append(helper.make_attribute(name, value))


def _odd_attribute(random: Random, model: Model) -> None:
    """Drop an attribute, rename it, or give one of any kind."""
    node = _node(random, model)
    if not node.attribute or random.random() < 0.3:
        node.attribute.append(
            helper.make_attribute(random.choice(("axis", "value", "mode", "to")), _value(random))
        )
        return
    attribute = random.choice(node.attribute)
    match random.randrange(3):
        case 0:
            node.attribute.remove(attribute)
        case 1:
            attribute.name = random.choice(("axis", "alpha", "pads", "mode", random.choice(ODD_TEXTS)))
        case _:
            attribute.CopyFrom(helper.make_attribute(attribute.name, _value(random)))


def _value(random: Random) -> Any:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: random.choice(INTEGERS),
        lambda: random.choice(FLOATS),
        lambda: random.choice((*TEXTS, *ODD_TEXTS)),
        lambda: [random.choice(INTEGERS) for _ in range(random.randint(1, 5))],
        lambda: [random.choice(FLOATS) for _ in range(random.randint(1, 3))],
        lambda: _tensor(random, "value"),
    )
    return random.choice(kinds)()


def _whole(random: Random) -> int:
    return random.choice((*INTEGERS[:7], *INTEGERS))


_VALUES: dict[int, Callable[[Random], Any]] = {
    onnx.AttributeProto.INT: _whole,
    onnx.AttributeProto.FLOAT: lambda random: random.choice(FLOATS),
    onnx.AttributeProto.STRING: lambda random: random.choice((*TEXTS, *TEXTS, *ODD_TEXTS)),
    onnx.AttributeProto.INTS: lambda random: [_whole(random) for _ in range(random.randint(1, 4))],
    onnx.AttributeProto.FLOATS: lambda random: [random.choice(FLOATS) for _ in range(random.randint(1, 3))],
    onnx.AttributeProto.TENSOR: lambda random: _tensor(random, "value"),
}


def _nearby(random: Random, attribute: onnx.AttributeProto) -> None:
    """Change the value, not the kind."""
    if attribute.ints:
        at = random.randrange(len(attribute.ints))
        match random.randrange(3):
            case 0:
                del attribute.ints[at]
            case 1:
                attribute.ints.insert(at, _whole(random))
            case _:
                attribute.ints[at] = _whole(random)
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = _whole(random)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = random.choice(FLOATS)
    elif attribute.type == onnx.AttributeProto.STRING:
        attribute.s = random.choice((*TEXTS, *ODD_TEXTS)).encode()
    elif attribute.type == onnx.AttributeProto.TENSOR:
        _change_tensor(random, attribute.t)


# Tensors


def _tensor(random: Random, name: str) -> TensorProto:
    """A small tensor of any kind."""
    kind = random.choice(
        (TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL, TensorProto.FLOAT16)
    )
    sizes = [random.randint(0, 4) for _ in range(random.randint(0, 3))]
    values = {TensorProto.INT64: INTEGERS, TensorProto.STRING: (b"a", b"\xff"), TensorProto.BOOL: (0, 1)}
    entries: list[Any] = [random.choice(values.get(kind, FLOATS[:6])) for _ in range(math.prod(sizes))]
    return helper.make_tensor(name, kind, sizes, entries)


def _stored(random: Random, model: Model) -> None:
    graph = model.graph
    if not graph.initializer or random.random() < 0.1:
        graph.initializer.append(_tensor(random, _name(random, model)))
        return
    tensor = random.choice(graph.initializer)
    match random.randrange(8):
        case 0:
            graph.initializer.remove(tensor)
        case 1:
            graph.initializer.append(tensor)
        case 2:
            tensor.name = _name(random, model)
        case 3:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
        case 4:
            sparse = graph.sparse_initializer.add()
            sparse.values.CopyFrom(tensor)
            sparse.dims.extend(random.choice(INTEGERS) for _ in range(2))
        case _:
            _change_tensor(random, tensor)


def _change_tensor(random: Random, tensor: TensorProto) -> None:
    match random.randrange(6):
        case 0 if tensor.dims:
            tensor.dims[random.randrange(len(tensor.dims))] = random.choice(INTEGERS)
        case 1:
            tensor.dims.insert(random.randrange(len(tensor.dims) + 1), random.choice((1, 1, 1, *INTEGERS)))
        case 2:
            tensor.data_type = random.choice(KINDS)
        case 3:
            tensor.raw_data = tensor.raw_data[
                : random.randrange(len(tensor.raw_data) + 1)
            ] + b"\x00" * random.choice((0, 1, 4))
        case 4:
            _external(random, tensor)
        case _:
            _entries(random, tensor)


def _external(random: Random, tensor: TensorProto) -> None:
    """Say that the data are elsewhere."""
    tensor.data_location = TensorProto.EXTERNAL
    paths = (
        "weights.bin",
        "../weights.bin",
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/environ",
        ".",
        "",
        "a/../../b",
        "\x00",
    )
    choices = {
        "location": paths,
        "offset": ("0", "4", "-1", "9" * 30, "x"),
        "length": ("0", "16", "-4", str(2**62), ""),
    }
    for key, values in choices.items():
        if random.random() < 0.8:
            tensor.external_data.add(key=key, value=random.choice(values))


def _entries(random: Random, tensor: TensorProto) -> None:
    """Write extreme entries of the same kind."""
    odd = {1: FLOATS, 7: INTEGERS}.get(tensor.data_type)
    if odd is None:
        return
    code, count = {1: "f", 7: "q"}[tensor.data_type], math.prod(tensor.dims)
    if 0 < count < 4096:
        import struct

        tensor.raw_data = struct.pack(f"<{count}{code}", *(random.choice(odd) for _ in range(count)))


def _soft_tensor(random: Random, model: Model) -> None:
    """Change the entries of a stored tensor, or make it one of a kind that is converted."""
    if not model.graph.initializer:
        return
    tensor = random.choice(model.graph.initializer)
    if random.random() < 0.3 and tensor.data_type == TensorProto.FLOAT:
        try:
            array = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, ValidationError):  # an earlier change made it unreadable
            return
        kind = random.choice(("float16", "float64", "int64", "bool"))
        tensor.CopyFrom(numpy_helper.from_array(array.astype(kind), tensor.name))
    else:
        _entries(random, tensor)


# Declarations


def _type(random: Random, model: Model) -> None:
    """Change the type or the shape of an input or output."""
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    kind = random.choice(values).type.tensor_type
    dims = kind.shape.dim
    match random.randrange(6):
        case 0:
            kind.elem_type = random.choice(KINDS)
        case 1:
            kind.ClearField("shape")
        case 2:
            dims.add().dim_value = random.choice(INTEGERS)
        case 3 if dims:
            random.choice(dims).dim_param = random.choice(("n", "batch", "", *ODD_TEXTS))
        case _ if dims:
            random.choice(dims).dim_value = random.choice(INTEGERS)


def _ends(random: Random, model: Model) -> None:
    """Add, drop or rename an input or output."""
    values = random.choice((model.graph.input, model.graph.output))
    match random.randrange(3):
        case 0 if values:
            del values[random.randrange(len(values))]
        case 1 if values:
            random.choice(values).name = _name(random, model)
        case _:
            sizes = [random.choice((1, 4, None, "n", *INTEGERS)) for _ in range(random.randint(0, 3))]
            values.append(helper.make_tensor_value_info(_name(random, model), random.choice((1, 7)), sizes))


def _version(random: Random, model: Model) -> None:
    match random.randrange(4):
        case 0:
            model.opset_import.add(domain=random.choice(DOMAINS), version=random.choice((1, 7, 13, 18, 23)))
        case 1 if model.opset_import:
            del model.opset_import[random.randrange(len(model.opset_import))]
        case 2:
            model.ir_version = random.choice((0, 1, 3, 8, 10, 13, 99, -1))
        case _:
            for entry in model.opset_import:
                entry.version = random.choice((7, 8, 9, 11, 13, 14, 18, 19, 20, 21, 22, 23, 24, 6, 0, -1, 2**31))


def _metadata(random: Random, model: Model) -> None:
    key = random.choice(list(METADATA))
    kept = {entry.key: entry.value for entry in model.metadata_props}
    helper.set_model_props(model, {**kept, key: random.choice(METADATA[key])})


def _function(random: Random, model: Model) -> None:
    """Make a function of a node, call it, and let it call itself or another, sometimes."""
    node = _node(random, model)
    inside = onnx.NodeProto()
    inside.CopyFrom(node)
    name = random.choice(("F", "G", node.op_type))
    domain = random.choice(("com.example", "com.example", ""))
    opsets = [helper.make_opsetid("", random.choice((7, 13, 17))), helper.make_opsetid("com.example", 1)]
    bodies = (
        [inside]
        if random.random() < 0.7
        else [helper.make_node(random.choice("FG"), node.input, node.output, domain=domain)]
    )
    function = helper.make_function(domain, name, list(node.input), list(node.output), bodies, opsets)
    model.functions.append(function)
    node.op_type, node.domain = name, domain


def _anything(random: Random, model: Model) -> None:
    """Change any field of any message."""
    messages = list(_messages(model))
    message = random.choice(messages)
    present = message.ListFields()
    field = (
        random.choice(message.DESCRIPTOR.fields)
        if not present or random.random() < 0.3
        else random.choice(present)[0]
    )
    if field.is_repeated:
        _change_list(random, message, field)
    elif random.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type is not None:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(random, field))


def _messages(message: Any) -> Iterator[Any]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if field.is_repeated else [value]:
                yield from _messages(part)


def _change_list(random: Random, message: Any, field: Any) -> None:
    entries = getattr(message, field.name)
    match random.randrange(3):
        case 0 if len(entries):
            del entries[random.randrange(len(entries))]
        case 1 if len(entries) and field.message_type is not None:
            entries.add().CopyFrom(random.choice(entries))
        case _ if field.message_type is not None:
            entries.add()
        case _:
            entries.append(_scalar(random, field))


def _scalar(random: Random, field: Any) -> Any:
    kinds: dict[int, Sequence[Any]] = {
        field.CPPTYPE_STRING: (*TEXTS, *ODD_TEXTS, b"\xff\xfe"),
        field.CPPTYPE_FLOAT: FLOATS,
        field.CPPTYPE_DOUBLE: FLOATS,
        field.CPPTYPE_BOOL: (True, False),
    }
    value = random.choice(kinds.get(field.cpp_type, INTEGERS))
    return value.encode() if isinstance(value, str) and field.type == field.TYPE_BYTES else value


_SOFT: tuple[Change, ...] = (
    _repeat_node,
    _operator,
    _edge,
    _edge,
    _attribute,
    _attribute,
    _attribute,
    _soft_tensor,
)
_CHANGES: tuple[Change, ...] = (
    *(
        _delete_node,
        _swap_nodes,
        _domain,
        _edge,
        _odd_attribute,
        _odd_attribute,
        _stored,
        _stored,
        _stored,
        _type,
        _type,
        _ends,
    ),
    *(_version, _version, _metadata, _function, _anything, _anything, _anything),
)
