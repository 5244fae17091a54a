"""The commands as functions of Python, on a reader's own `nn.Module`, and the way back into that module."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lipcompile import pipeline
from lipcompile.analysis.clips import Source
from lipcompile.core.backend import find, instantiate
from lipcompile.diagnostics import InputError, Severity, input_error, told
from lipcompile.frontends.options import Loaded, ModelOptions, OriginalError, model_options, parse_number
from lipcompile.frontends.repairs import BatchNorm, Repairs
from lipcompile.ops.own.rules import OWN_NETWORK
from lipcompile.ops.registry import load_plugins

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from lipcompile.core.derivation import Derivation
    from lipcompile.fixing import Outcome
    from lipcompile.frontends.torch.outputs import Structure

    Example = Tensor | Sequence[Tensor] | Mapping[str, Tensor | Sequence[int]] | Sequence[int]
    Loss = Callable[[Any, Any], Tensor]


def private(
    module: Module,
    example: Example,
    *,
    loss: str | Loss = "cross_entropy",
    bounds: Source = "auto",
    verify_import: bool = True,
    **options: Any,
) -> Any:
    """Return a module that computes what yours does, with its weights, and that `PrivacyEngine` can train.

    Args:
        module: yours; it is traced as it is, and left as it was.
        example: a batch of examples [B, …], one for each argument of `forward`, by position or by name; or the
            shape of one example, by name if `forward` takes several. Only shapes and kinds of numbers are read.
        loss: as on the command line; or a loss of torch, such as `torch.nn.MSELoss()`; or a function of outputs
            and targets of a batch, which is given one example at a time, as a batch of one. It must depend on
            these alone, and needs bounds by clip. Targets are a tensor [B, …], or a tuple or a mapping of some.
            A function is given all that `forward` of yours returns, such as the outputs of several heads. Where
            that is no lone tensor, the module of this returns one, [B, K], and its `split_output` takes it apart.
        bounds: "auto" clips the gradient of each example in the backward pass, unless a theorem bounds it tightly.
        verify_import: compare both modules on random inputs first, if no layer is replaced.
        options: see `frontends.options.model_options`; `batch_norm="group_norm"` replaces batch normalisation.

    Returns:
        A `lipcompile_torch.LipschitzModule`: an `nn.Module` that takes the inputs of the example, by position or
        by name, and whose `criterion` is the loss. With bounds by clip it has the weights of `module`; bounds by
        theorem project them into their constraints.

    Raises:
        InputError: the module is rejected; the diagnostics say where, why, and how to fix it.

    Examples:
        >>> import lipcompile, torch
        >>> from lipcompile_torch import PrivacyEngine
        >>> model = lipcompile.private(torch.nn.Linear(4, 2), [4])
        >>> data = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.zeros(32, dtype=torch.long))
        >>> model, optimizer, loader = PrivacyEngine().make_private(
        ...     module=model,
        ...     optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        ...     data_loader=torch.utils.data.DataLoader(data, batch_size=8),
        ...     noise_multiplier=1.0,
        ... )
        >>> for x, y in loader:
        ...     optimizer.zero_grad()
        ...     model.criterion(model(x), y).backward()
        ...     optimizer.step()
    """
    chosen = _options(loss, bounds, options)
    with _joining(module, chosen) as outputs:
        _, derivation, text = _emitted(module, example, chosen, verify=verify_import)
    return _with_loss(
        instantiate(Path(f"{derivation.source.name}.py"), text, derivation.source.network), loss, outputs
    )


def _options(loss: str | Loss | None, bounds: Source, options: Mapping[str, Any]) -> ModelOptions:
    """Return the options of a call."""
    chosen = model_options(loss=_named(loss), bounds=bounds, **options)
    return replace(chosen, torchs_reduction=getattr(loss, "reduction", "mean") if callable(loss) else "")


def _named(loss: str | Loss | None) -> str | None:
    """Return the name of a loss, that of a function if it has no other; raises InputError (LIP210)."""
    from lipcompile.ops.loss.torch_read import loss_text

    return loss if loss is None or isinstance(loss, str) else loss_text(loss) or "own"


def _joining(model: str | Path | Module, options: ModelOptions) -> AbstractContextManager[list[Structure]]:
    """Let a module return several tensors as one if the loss is a function of Python, which takes them apart."""
    if isinstance(model, str | Path) or options.loss != "own":
        return nullcontext([])
    from lipcompile.frontends.torch.outputs import joined

    return joined(model)


def _with_loss(module: Any, loss: str | Loss | None, outputs: Sequence[Structure]) -> Any:
    """Return an emitted module whose loss, if it is a function of Python, is this one, of what `outputs` says."""
    if not callable(loss) or _named(loss) != "own":
        return module
    if outputs:
        module.split_output = split = outputs[0]  # of the trace; later runs may be in another mode
        module.own_loss = partial(_of_parts, loss, split)
    else:
        module.own_loss = partial(loss)  # a module would become a part of this one
    return module


def _of_parts(loss: Loss, split: Structure, output: Any, target: Any) -> Any:
    return loss(split(output), target)


def compile(  # noqa: A001  (the name of the command)
    model: str | Path | Module,
    output: str | Path,
    *,
    example: Example | None = None,
    loss: str | Loss | None = None,
    bounds: Source = "auto",
    verify_import: bool = True,
    **options: Any,
) -> Path:
    """Write the module that trains under the derived bounds, as `lipcompile compile` does; return its path.

    Args:
        model: a .lip or .onnx file, `package.module:factory`, or a torch module, which needs an `example`.
        output: the Python file.
        example: see `private`.
        loss: see `private`; the one that a .lip file names counts if there is none here. A file holds no function:
            `own_loss` of its module takes it.
        bounds, verify_import, options: see `private`.

    Returns:
        The path of the file. Its `Model`, without arguments, is the module.

    Raises:
        InputError: the model is rejected or cannot be read.
        OSError: the file cannot be written.

    Examples:
        >>> import lipcompile
        >>> path = lipcompile.compile("model.lip", "model.py", bounds="theorem")
        >>> "class M(" in path.read_text()
        True
    """
    chosen = _options(loss, bounds, options)
    path = Path(output)
    path.write_text(_emitted(model, example, chosen, verify=verify_import)[2], encoding="utf-8")
    return path


def train(
    model: str | Path | Module,
    data: Any,
    output: str | Path,
    *,
    epsilon: float,
    delta: float,
    epochs: int | None = None,
    batch_size: int | None = None,
    example: Example | None = None,
    loss: str | Loss | None = None,
    bounds: Source = "auto",
    verify_import: bool = True,
    how: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Train privately to a budget, as `lipcompile train` does; the `train` block of a .lip file holds as well.

    Args:
        model, bounds, verify_import, options: see `compile`.
        loss: see `private`.
        example: of a module; the data, if left out.
        data: (x_train, y_train, x_test, y_test), arrays of numpy or what becomes some; of several inputs, mappings
            {name: array}; or two data sets, to train and to test on, whose items are an input and a label (those
            of torch, or splits of Hugging Face's `datasets`); or `lipcompile_torch.train.data.Arrays`; converted
            as those of a file are.
        output: folder for model.py, checkpoint.pt and ledger.jsonl. One with a run is refused, unless `how` says
            resume=True.
        epsilon, delta: the budget.
        epochs, batch_size: as on the command line; None: those of the `train` block, or the defaults.
        how: further fields of `lipcompile_torch.train.training.TrainConfig`, which win over the `train` block.

    Returns:
        `lipcompile_torch.train.training.TrainResult`: accuracy, ε, steps, and the files.

    Raises:
        InputError: the model is rejected or cannot be read, or the folder holds another run.
        TypeError: a setting that is a number was given something else.
        DataError: the arrays do not fit; errors of `lipcompile_torch.train.training.train`.

    Examples:
        >>> import lipcompile, numpy
        >>> x = numpy.random.default_rng(0).standard_normal((64, 4)).astype("float32")
        >>> y = (x[:, 0] > 0).astype("int64")
        >>> result = lipcompile.train(
        ...     "model.lip", (x, y, x, y), "run", epsilon=8, delta=1e-3, epochs=1, how={"accountant": "rdp"}
        ... )
        >>> result.epsilon <= 8
        True
    """
    from lipcompile_privacy.planning import warn_of_delta

    from lipcompile.cli.shared.inputs import checked
    from lipcompile.cli.shared.settings import defaults_of, planned, training_settings
    from lipcompile.cli.shared.training import check_targets, default_batch, drawn, text_of_run

    backend, how = find(), dict(how or {})
    settings = {"epsilon": epsilon, "delta": delta, "epochs": epochs, "batch_size": batch_size, **how}
    backend.training.TrainConfig.check_numbers(settings)  # before minutes are spent on the model
    if not isinstance(data, backend.data.Arrays) and len(data) == 2:
        data = [array for one in data for array in backend.data.items_of(one, how.get("seed") is not None)]
    if isinstance(example, Mapping) and not isinstance(data, backend.data.Arrays):
        data = [_of_kinds(one, example) for one in data]
    inputs = data.x_train if isinstance(data, backend.data.Arrays) else data[0]
    shape = example if example is not None else _example_of(inputs)
    chosen = _options(loss, bounds, options)
    with _joining(model, chosen) as outputs:
        loaded, derivation, text = _emitted(model, shape, chosen, verify=verify_import)
    assert derivation.analysis is not None
    arrays = checked(data, derivation.analysis.graph, backend)
    warn_of_delta(delta, len(arrays.x_train), 2)
    folder = Path(output)
    text = text_of_run(folder, text, resume=bool(how.get("resume")))
    made = drawn(folder / "model.py", text, how.get("seed"), derivation.source.network)
    module = _with_loss(made, loss, outputs)
    check_targets(module, arrays)
    given = dict.fromkeys(field.name for field in fields(backend.training.TrainConfig) if field.name != "output")
    given |= settings
    if "correlation" in how:
        given["correlation"] = how["correlation"] or {}
    settings = training_settings(given, planned(loaded), defaults_of(derivation))
    settings |= how  # a None of `how` is a setting
    settings["batch_size"] = settings["batch_size"] or default_batch(derivation, len(arrays.x_train))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(text, encoding="utf-8")
    return backend.training.train(module, arrays, backend.training.TrainConfig(output=folder, **settings))


def _of_kinds(inputs: Any, example: Mapping[str, Any]) -> Any:
    """Return inputs by name, as int64 where the example has whole numbers: else bytes are scaled as pixels."""
    if not isinstance(inputs, Mapping):
        return inputs
    whole = {name for name, one in example.items() if hasattr(one, "dtype") and not one.dtype.is_floating_point}
    return {name: np.asarray(one).astype(np.int64) if name in whole else one for name, one in inputs.items()}


def _example_of(inputs: Any) -> Example:
    """Return the shape of one example; of several inputs, that of each, or an example where its kind is known."""
    if not isinstance(inputs, Mapping):
        return tuple(np.shape(inputs)[1:])
    import torch

    found: dict[str, Tensor | tuple[int, ...]] = {}
    for name, given in inputs.items():
        array = np.asarray(given)[:1]
        if array.dtype.kind in "iub" and array.dtype != np.uint8:  # which images have, and small tokens
            found[name] = torch.from_numpy(array.astype(bool if array.dtype.kind == "b" else np.int64))
        else:
            found[name] = array.shape[1:]
    return found


def fix(
    model: str | Path,
    output: str | Path,
    *,
    example: Sequence[int] | None = None,
    batch_norm: BatchNorm = "group_norm",
    floor: float = 1.0,
    target: float | None = None,
    **options: Any,
) -> Outcome:
    """Write a model that passes `check`, as near to `model` as its bound allows, as `lipcompile fix` does.

    Args:
        model: see `compile`, but for a module in memory, which `batch_norm` of `private` and the others fixes.
        output: a .lip or .onnx file.
        example: the shape of one example, of `package.module:factory`.
        batch_norm: what takes the place of batch normalisation.
        floor: of the deviation that a norm divides by.
        target: the largest bound of the whole gradient to aim at; without it, one that is useful.
        options: see `frontends.options.model_options`.

    Returns:
        What was changed: `ok` says whether a file was written, `reached` whether the bound came down as far as it
        should, `check` is the derivation of what was written.

    Raises:
        InputError: the model cannot be read, or the format has no words for it (LIP017).
        OSError: the file cannot be written.

    Examples:
        >>> import lipcompile
        >>> outcome = lipcompile.fix("model.lip", "fixed.lip")
        >>> outcome.reached, outcome.check.ok
        (True, True)
    """
    from lipcompile import fixing
    from lipcompile.cli.shared.signals import aim

    if not isinstance(model, str | Path):
        help_line = 'give batch_norm="group_norm" to lipcompile.private, compile or train'
        raise input_error("LIP001", "fix reads files and package.module:factory, not modules in memory", help_line)
    wanted = fixing.FixOptions(Repairs(batch_norm, parse_number(str(floor), "floor")), aim=aim(target))
    options_of_model = _shaped(str(model), example, model_options(**options))
    return fixing.fix(str(model), options_of_model, wanted, Path(output))


def load_trained(
    module: Module, trained: Module | str | Path, example: Example, *, verify_import: bool = True, **options: Any
) -> Module:
    """Load privately trained weights into the module that they began in: yours, without any part of this package.

    Args:
        module: yours; its trained parameters change in place, and nothing else.
        trained: what `private` made of it, after training; or the folder of `train` or `lipcompile train`.
        example, options: those that `private`, `train` or the command was given; the loss is known.
        verify_import: compare both modules.

    The two modules are compared on random inputs, in evaluation mode; a warning says so where yours fails on them.
    With bounds by theorem the private module clips its inputs to their norm, and yours does not.

    Returns:
        `module`.

    Raises:
        InputError: `trained` does not come from this module; a weight of it is computed from several of yours
            (a folded batch normalisation); or the two then differ, as where batch normalisation was replaced
            (LIP523). The module is as it was.

    Examples:
        >>> import lipcompile, torch
        >>> mine = torch.nn.Linear(4, 2)
        >>> private = lipcompile.private(mine, [4])
        >>> _ = private.linear.weight.data.fill_(0.5)  # in place of training
        >>> lipcompile.load_trained(mine, private, [4]).weight[0].tolist()
        [0.5, 0.5, 0.5, 0.5]
    """
    from lipcompile.certificates.read import graph_of
    from lipcompile.cli.shared.inputs import trained as read
    from lipcompile.emitters.lip_text import loss_text

    source: Any = read(Path(trained), None, find()).module if isinstance(trained, (str, Path)) else trained
    load_plugins()
    graph = graph_of(source.certificate)
    use = graph.loss
    known = {} if use is None else {"loss": loss_text(use)}
    chosen = model_options(**{**options, **known, "bounds": "clip"})
    with _joining(module, chosen):
        is_alone = any(node.op is OWN_NETWORK for node in graph.nodes)
        return _loaded(module, source, example, chosen, is_alone=is_alone, verify=verify_import)


def _loaded(
    module: Module, source: Any, example: Example, options: ModelOptions, *, is_alone: bool, verify: bool
) -> Module:
    """Return the module with the weights of what was made of it; raises InputError."""
    import torch

    from lipcompile.cli.shared.verdicts import agreement
    from lipcompile.frontends.torch.origins import origins
    from lipcompile.frontends.torch.padding import padded

    trained_ones = {name: one.detach() for name, one in source.named_parameters() if one.requires_grad}
    found = origins(module, example, options, trained_ones.keys(), is_alone=is_alone)
    entries = found.entries({name: one.double().cpu().numpy() for name, one in trained_ones.items()})
    parameters = {
        name: torch.view_as_real(one.detach()) if one.is_complex() else one
        for name, one in module.named_parameters(remove_duplicate=False)
    }
    before = {name: parameters[name].detach().clone() for name in entries}
    own = {
        "__init__": lambda self: self.__dict__.update(deepcopy(source).__dict__),
        "own_network": found.loaded.source.network,
    }
    twin = type("Twin", (type(source),), own)
    derivation, rows = pipeline.derive(found.loaded, options), {} if is_alone else padded(module)
    for zeros in (rows, {}) if rows else ({},):  # bounds by theorem train the rows of padding as well
        _set(parameters, entries, before)
        with torch.no_grad():
            for part in zeros.values():
                part.weight[part.padding_idx] = 0
        if not verify:
            return module
        try:
            compared = agreement(twin, found.run, derivation, find())
        except OriginalError as error:
            warnings.warn(f"the weights were loaded, but could not be compared: {error}", UserWarning, 3)
            return module
        if compared.agrees:
            return module
    with torch.no_grad():
        for name, weights in before.items():
            parameters[name].copy_(weights)
    copies = (one.message for one in found.loaded.diagnostics if one.code == "LIP122")
    cause = next(copies, "a layer was replaced on import, or rounding turned over a function that jumps")
    share = f"{compared.relative:.1e} of an example's largest output, on {compared.examples} random inputs"
    message = f"with the trained weights your module computes something else, by up to {share}: {cause}"
    help_line = (
        "replace it in your module, too, before `private` reads it; or deploy the private module as it is, by "
        "lipcompile.export_onnx; verify_import=False loads the weights all the same"
    )
    raise input_error("LIP523", message, help_line)


def _set(parameters: Mapping[str, Any], entries: Mapping[str, Any], before: Mapping[str, Any]) -> None:
    """Give parameters of a module the entries that were trained; others stay as they were before."""
    import torch

    with torch.no_grad():
        for name, (places, values) in entries.items():
            old, new = before[name].cpu().flatten(), torch.from_numpy(values)
            mixed = torch.where(torch.from_numpy(places), new.to(old.dtype), old)
            parameters[name].copy_(mixed.view_as(parameters[name]))


def _shaped(model: str, example: Any, options: ModelOptions) -> ModelOptions:
    """Return the options with the shape of one example, where a model does not say it itself."""
    shape = {} if example is None or not model.partition("::")[0].count(":") else {"": tuple(example)}
    return replace(options, input_shape=shape)


def _emitted(
    model: str | Path | Module, example: Example | None, options: ModelOptions, *, verify: bool
) -> tuple[Loaded, Derivation, str]:
    """Return an accepted model, its derivation and its program; raises InputError."""
    from lipcompile.cli.shared.settings import noise_strategy, planned, planned_training
    from lipcompile.cli.shared.verdicts import UNCHECKED, verified

    if isinstance(model, str | Path):
        options = _shaped(str(model), example, options)
        loaded = pipeline.load(str(model), options)
    elif example is None:
        raise input_error("LIP023", "a torch module needs an example", "give a batch, or the shape of one example")
    else:
        loaded = pipeline.load_module(model, example, options)
    derivation = pipeline.derive(loaded, options)
    if not derivation.ok:
        raise InputError(derivation.diagnostics, derivation.source.text)
    for found in derivation.diagnostics:
        if found.severity == Severity.WARNING or found.code == "LIP215":  # the outputs are others
            warnings.warn(told(found), UserWarning, 3)
    strategy, training = noise_strategy(planned(loaded)), planned_training(loaded)
    text = find().emit(derivation, noise_strategy=strategy, training=training)
    if verify:
        compared = verified(loaded, derivation, find(), text)
        if not compared.ok:
            raise InputError(compared.diagnostics, derivation.source.text)
        for found in compared.diagnostics[len(derivation.diagnostics) :]:
            if UNCHECKED in found.message and loaded.source.format == "torch":
                warnings.warn(told(found), UserWarning, 3)
    return loaded, derivation, text
