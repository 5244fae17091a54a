"""Colours: the lexer of Pygments, and the grammar that VS Code reads, each word of which the compiler knows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pygments.lexers import get_lexer_by_name, get_lexer_for_filename
from pygments.token import Comment, Error, Keyword, Name, Number

from lipcompile.editor.words import KEYWORDS, known_layers, losses
from lipcompile.version import __version__
from tests.editor.textmate import grammar

ROOT = Path(__file__).parents[2]
EXTENSION = ROOT / "editors" / "vscode"
EXAMPLES = sorted((ROOT / "examples").glob("*.lip"))


def coloured(text: str) -> list[tuple[Any, str]]:
    return [(kind, value) for kind, value in get_lexer_by_name("lip").get_tokens(text) if value.strip()]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_have_colours(path: Path) -> None:
    """Nothing is an error, and the text comes back."""
    text = path.read_text()
    found = list(get_lexer_for_filename(path.name).get_tokens(text))
    assert "".join(value for _, value in found) == text
    assert all(kind is not Error for kind, _ in found)


def test_words_have_their_colours() -> None:
    found = coloured("model m { a = dense(8, bias=0.5)  # b\nwide(a) loss bce }")
    assert [kind for kind, value in found if value in ("model", "m", "a", "dense", "bias", "0.5", "# b")] == [
        Keyword.Declaration,
        Name.Class,
        Name.Variable,
        Name.Builtin,
        Name.Attribute,
        Number,
        Comment.Single,
        Name,
    ]
    assert {value: kind for kind, value in found}["bce"] is Name.Builtin


@pytest.mark.parametrize("name", [*known_layers(), *losses()])
def test_every_layer_and_loss_is_known(name: str) -> None:
    assert (Name.Builtin, name) in coloured(f"model m {{ {name} }}")


def test_the_grammar_of_the_extension_is_that_of_the_words() -> None:
    path = EXTENSION / "syntaxes" / "lip.tmLanguage.json"
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(json.dumps(grammar(), indent=2) + "\n")
    assert json.loads(path.read_text()) == grammar()
    (keywords, functions) = (
        next(p for p in grammar()["patterns"] if p.get("name") == scope)["match"]
        for scope in ("keyword.control.lip", "support.function.lip")
    )
    assert all(re.fullmatch(keywords, word) for word in KEYWORDS)
    assert all(re.fullmatch(functions, word) for word in (*known_layers(), *losses()))


def test_the_extension_is_whole() -> None:
    """What its manifest names is there, and its version is ours."""
    manifest = json.loads((EXTENSION / "package.json").read_text())
    (language,), (colours,) = manifest["contributes"]["languages"], manifest["contributes"]["grammars"]
    named = [manifest["main"], language["configuration"], colours["path"]]
    assert all((EXTENSION / path).is_file() for path in named)
    assert manifest["version"] == __version__
    assert manifest["contributes"]["configuration"]["properties"]["lipcompile.command"]["default"][1] == "lsp"
    json.loads((EXTENSION / language["configuration"]).read_text())


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_extension_starts_the_server(tmp_path: Path) -> None:
    """With a client that cannot start: it gets the command, and the user the cause. Given a `transport`, the real
    client would append an option to the command."""
    stubs = tmp_path / "node_modules"
    (stubs / "vscode-languageclient").mkdir(parents=True)
    (stubs / "vscode.js").write_text(
        """exports.workspace = { getConfiguration: () => ({ get: () => ["lipcompile", "lsp"] }) };
        exports.window = { showErrorMessage: (text) => console.log(JSON.stringify(text)) };"""
    )
    (stubs / "vscode-languageclient" / "node.js").write_text(
        """exports.LanguageClient = class {
          constructor(id, name, server) { console.log(JSON.stringify(server)); }
          async start() { throw "spawn ENOENT"; }
          async stop() { throw new Error("a client that did not start cannot stop"); }
        };"""
    )
    session = f"const e = require({str(EXTENSION / 'extension.js')!r}); e.activate().then(() => e.deactivate());"
    environment = {**os.environ, "NODE_PATH": str(stubs)}
    done = subprocess.run(["node", "-e", session], env=environment, capture_output=True, text=True, check=True)
    server, message = map(json.loads, done.stdout.splitlines())
    assert server == {"command": "lipcompile", "args": ["lsp"], "options": {}}
    assert "did not start (spawn ENOENT)" in message
