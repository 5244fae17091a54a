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
    # With a list of files, the packager leaves the client out unless the list has it.
    assert {"extension.js", "node_modules"} <= set(manifest["files"])
    assert manifest["contributes"]["configuration"]["properties"]["lipcompile.command"]["default"][1] == "lsp"
    json.loads((EXTENSION / language["configuration"]).read_text())


VSCODE = """
let changed;
const command = JSON.parse(process.env.COMMAND);
exports.told = (...told) => console.log(JSON.stringify(told));
exports.change = () => { command[0] = "good"; return changed({ affectsConfiguration: () => true }); };
exports.workspace = {
  getConfiguration: () => ({ get: () => command }),
  onDidChangeConfiguration: (found) => { changed = found; },
};
exports.commands = {
  registerCommand: (name) => exports.told("command", name),
  executeCommand: async (...asked) => exports.told("asked", ...asked),
};
exports.window = {
  createOutputChannel: () => ({ show: () => exports.told("log") }),
  showErrorMessage: async (text, ...choices) => { exports.told("message", text); return choices[0]; },
};
"""
CLIENT = """
const { told } = require("vscode");
exports.LanguageClient = class {
  constructor(id, name, server, options) { this.server = server; this.options = options; }
  error(message, data, show) { told("error", message, show); }
  async start() {
    told("start", this.server, this.options.documentSelector);
    if (this.server.command === "good") return;
    this.error("couldn't create connection", null, "force");
    throw this.server.command === "bad" ? new Error("ended") : "spawn ENOENT";
  }
  async dispose() { told("stopped"); if (this.server.command !== "good") throw new Error("it did not start"); }
};
"""


def extension(folder: Path, command: str, then: str = "") -> list[list[object]]:
    """Start the extension with a client that starts nothing but `good`; return what it does and tells."""
    stubs = folder / "node_modules"
    (stubs / "vscode-languageclient").mkdir(parents=True)
    (stubs / "vscode.js").write_text(VSCODE)
    (stubs / "vscode-languageclient" / "node.js").write_text(CLIENT)
    session = f"""(async () => {{
      const e = require({str(EXTENSION / "extension.js")!r}), vscode = require("vscode");
      await e.activate({{ subscriptions: [] }});
      {then}
      await e.deactivate();
    }})()"""
    environment = {**os.environ, "NODE_PATH": str(stubs), "COMMAND": json.dumps([command, "lsp"])}
    done = subprocess.run(["node", "-e", session], env=environment, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_extension_starts_the_server(tmp_path: Path) -> None:
    """The real client appends an option to the command if it gets a `transport`. Unsaved texts have a server."""
    registered, start, stopped = extension(tmp_path, "good")
    assert registered == ["command", "lipcompile.restart"]
    assert start[1] == {"command": "good", "args": ["lsp"], "options": {}}
    assert start[2] == [{"scheme": scheme, "language": "lip"} for scheme in ("file", "untitled")]
    assert stopped == ["stopped"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize(
    ("command", "cause"),
    [
        ("missing", 'there is no program "missing". Install it'),
        ("bad", '"bad lsp" ended with an error. Install it'),
    ],
)
def test_a_server_that_does_not_start(tmp_path: Path, command: str, cause: str) -> None:
    """The user gets one message, with the cause and a way to the setting. A change of the setting starts again."""
    told = extension(tmp_path, command, "await vscode.change();")
    assert [entry[0] for entry in told] == ["command", "start", "error", "message", "asked", "start", "stopped"]
    assert told[2][2] is False  # the client's own message stays in the log
    assert cause in str(told[3][1])
    assert told[4][1:] == ["workbench.action.openSettings", "lipcompile.command"]
