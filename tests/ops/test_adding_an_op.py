"""docs/adding-an-op.md does what it says."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import torch
from lipcompile_torch.train.certificate import UncertifiedWarning, check_certificate
from lipcompile_torch.train.module import LipschitzModule

import lipcompile
from lipcompile.__main__ import run
from lipcompile.certificates import certificate, encode
from lipcompile.core.record import AnyOp, Shape
from lipcompile.diagnostics import InputError
from lipcompile.emitters.torch.emit import emit
from lipcompile.emitters.torch.expressions import unregister_expression
from lipcompile.ops.activation.rules import OPS
from lipcompile.ops.activation.write import WRITTEN
from lipcompile.ops.registry import layers, load_plugins, registered, unregister
from lipcompile.ops.rules import plain, same_shape
from lipcompile.ops.schema import signature

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "adding-an-op.md"
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run the page's Python, and yield its model."""
    program = "\n".join(text for language, text in BLOCKS if language == "python")
    (tmp_path / "my_ops.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "model.lip"
    path.write_text(next(text for language, text in BLOCKS if not language))
    try:
        import_module("my_ops")
        yield path
    finally:
        sys.modules.pop("my_ops", None)
        unregister("soft_shrink")
        unregister_expression("soft_shrink")


def test_the_op_of_the_page_is_checked_and_computed(page: Path) -> None:
    derivation = lipcompile.check(str(page))
    assert derivation.analysis is not None
    norm = derivation.analysis.layers[1].output_norm
    assert str(norm.expression) == "Max(0, X_0 - 1/2)"
    assert norm.value == 1.5
    space: dict[str, type[torch.nn.Module]] = {}
    exec(compile(emit(derivation), "emitted.py", "exec"), space)
    model, x = space["Model"](), torch.randn(4, 8)
    first, last = model.get_submodule("dense"), model.get_submodule("dense_2")
    h = first(x * (2 / x.norm(dim=1, keepdim=True)).clamp(max=1))
    torch.testing.assert_close(model(x), last(h.sign() * (h.abs() - 0.5).clamp_min(0)))


def test_certificates_say_that_nobody_else_vouches_for_it(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = certificate(lipcompile.check(str(page)))
    assert document["user_ops"] == ["soft_shrink"]
    assert document["graph"]["nodes"][1]["attributes"] == {"threshold": "1/2"}
    schema = json.loads(files("lipcompile.reports").joinpath("certificate.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator(schema).validate(document)
    file = page.with_suffix(".json")
    file.write_bytes(encode(document))
    assert run(["verify", str(file)]) == 1
    assert "not checked, because users registered their rules: soft_shrink" in capsys.readouterr().err
    space: dict[str, type[LipschitzModule]] = {}
    exec(compile(emit(lipcompile.check(str(page))), "emitted.py", "exec"), space)
    with pytest.warns(UncertifiedWarning, match="uses rules for soft_shrink that the verifier does not know"):
        check_certificate(space["Model"]())


def test_names_are_taken_once() -> None:
    with pytest.raises(ValueError, match="the name is taken"):
        lipcompile.register(OPS[0])
    with pytest.raises(ValueError, match="spelling `relu` is taken"):
        lipcompile.register(plain("my_relu", type(OPS[0]), same_shape, "p.md", dsl=layers()["relu"][0].dsl))
    with pytest.raises(TypeError, match="takes an Op"):
        lipcompile.register(Shape)  # type: ignore[arg-type]
    assert not registered()


KNOWING = re.compile(r"\bcelu\b", re.IGNORECASE)


def test_the_page_lists_the_files_that_know_an_activation() -> None:
    """`celu` is computed by one call in torch and one operator of ONNX: what knows it knows every activation."""
    places = [path for top in ("lipcompile", "backends", "tests/attacks") for path in (ROOT / top).rglob("*.*")]
    found = {
        str(path.relative_to(ROOT))
        for path in places
        if path.suffix in (".py", ".md", ".toml", ".lark") and KNOWING.search(path.read_text(encoding="utf-8"))
    }
    section = PAGE.read_text(encoding="utf-8").partition("## An activation of this repository")[2]
    assert found == set(re.findall(r"^- `([\w/.]+)`", section, re.MULTILINE))


def spelled(op: AnyOp) -> str:
    """The names of an op in .lip, the first with its arguments."""
    arguments = signature(op.attributes).partition("(")[2].replace("None", "").rstrip(")")
    first, *others = (spelling.name for spelling in op.dsl)
    called = f"`{first}({arguments})`" if arguments else f"`{first}`"
    return f"{called} (also {', '.join(f'`{name}`' for name in others)})" if others else called


def test_the_grammar_lists_all_activations() -> None:
    """Their cells of the table of layers are written from the records."""
    page = ROOT / "grammar" / "README.md"
    before = page.read_text(encoding="utf-8")
    known = [op for op in OPS if op.name in WRITTEN or op.name == "gelu"]
    cells = iter(
        " ".join(spelled(op) for op in known if (op.lipschitz is None) == jumps) for jumps in (False, True)
    )
    after = re.sub(r"^\|[^|]*(?=\| every entry \|)", lambda _: f"| {next(cells)} ", before, flags=re.MULTILINE)
    if os.environ.get("UPDATE_GRAMMAR"):
        page.write_text(after, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == after, "UPDATE_GRAMMAR=1 writes the table"


class Point:
    """An entry point of a package."""

    name, value = "broken", "nowhere:OP"

    def load(self) -> object:
        raise ImportError("no module named nowhere")


def test_a_plugin_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lipcompile.ops.registry.entry_points", lambda **_: [Point()])
    load_plugins.cache_clear()
    with pytest.raises(InputError) as caught:
        load_plugins()
    load_plugins.cache_clear()
    assert caught.value.diagnostics[0].code == "LIP008"
    assert "nowhere:OP" in caught.value.diagnostics[0].message
