"""The language server, asked by a real client over stdio; a session has a minute, and takes a few seconds."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types as lsp
from pygls.lsp.client import BaseLanguageClient
from pygls.workspace import Workspace

from lipcompile.editor.document import Document, checked
from lipcompile.editor.server import Server

pytestmark = pytest.mark.slow

SECONDS = 180
MODEL = """block wide(width) { dense(width); groupsort(2) }

model m {
    input x: tensor[4], norm <= 1
    wide(8)
    logits = dense(2, constraint=frobenius(3))
    loss cross_entropy(temperature=4)
}
"""


@dataclass
class Session:
    """A client of a server that works in a folder."""

    client: BaseLanguageClient
    folder: Path
    versions: dict[str, int] = field(default_factory=dict)
    published: asyncio.Queue[lsp.PublishDiagnosticsParams] = field(default_factory=asyncio.Queue)

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str) -> None:
        self.versions[name] = 1
        document = lsp.TextDocumentItem(self.uri(name), "lip", 1, text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))

    def change(self, name: str, text: str) -> None:
        self.versions[name] += 1
        identifier = lsp.VersionedTextDocumentIdentifier(self.versions[name], self.uri(name))
        whole: Any = [lsp.TextDocumentContentChangeEvent_Type2(text)]
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(identifier, whole))

    async def diagnostics(self, name: str) -> list[lsp.Diagnostic]:
        """Return those of the present version."""
        while True:
            found = await self.published.get()
            if found.uri == self.uri(name) and found.version == self.versions[name]:
                return found.diagnostics

    def at(self, name: str, line: int, column: int) -> dict[str, Any]:
        identifier = lsp.TextDocumentIdentifier(self.uri(name))
        return {"text_document": identifier, "position": lsp.Position(line, column)}

    async def hover(self, name: str, line: int, column: int) -> str:
        found = await self.client.text_document_hover_async(lsp.HoverParams(**self.at(name, line, column)))
        assert found is not None
        assert isinstance(found.contents, lsp.MarkupContent)
        return found.contents.value

    async def words(self, name: str, line: int, column: int) -> list[str]:
        params = lsp.CompletionParams(**self.at(name, line, column))
        found = await self.client.text_document_completion_async(params)
        assert isinstance(found, list)
        return [item.label for item in found]

    async def repairs(self, name: str, where: lsp.Range) -> list[lsp.CodeAction]:
        identifier = lsp.TextDocumentIdentifier(self.uri(name))
        params = lsp.CodeActionParams(identifier, where, lsp.CodeActionContext([]))
        return await self.client.text_document_code_action_async(params)  # type: ignore[return-value]

    async def formatted(self, name: str) -> list[lsp.TextEdit]:
        identifier = lsp.TextDocumentIdentifier(self.uri(name))
        params = lsp.DocumentFormattingParams(identifier, lsp.FormattingOptions(4, True))
        return await self.client.text_document_formatting_async(params) or []


def with_server(folder: Path, talk: Callable[[Session], Awaitable[None]], options: Sequence[str] = ()) -> None:
    """Start the server with options, let `talk` ask it, and see it end in order."""

    async def session() -> None:
        client = BaseLanguageClient("tests", "1")
        now = Session(client, folder)
        client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda found: now.published.put_nowait(found))
        await client.start_io(sys.executable, "-m", "lipcompile", "lsp", *options, cwd=str(folder))
        try:
            capabilities = lsp.ClientCapabilities()
            params = lsp.InitializeParams(capabilities, root_uri=folder.as_uri())
            await client.initialize_async(params)
            client.initialized(lsp.InitializedParams())
            await talk(now)
            await client.shutdown_async(None)
            client.exit(None)
            assert client._server is not None
            assert await client._server.wait() == 0
        finally:
            await client.stop()  # type: ignore[no-untyped-call]

    asyncio.run(asyncio.wait_for(session(), SECONDS))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_session(tmp_path: Path) -> None:
    async def talk(now: Session) -> None:
        now.open("m.lip", MODEL)
        assert await now.diagnostics("m.lip") == []

        # ‖x‖ <= 1 and GroupSort of gain 1: κ = 1; L = √2 of the loss, of both classes; K = κ·L.
        text = await now.hover("m.lip", 5, 15)
        assert "**logits**: 8 → 2" in text
        assert "gradient bound of `logits.weight` 2×8, frobenius<=3" in text
        assert "| κ of `logits.weight` | | 1.0000000 |" in text
        assert "1.4142136 |" in text
        assert "`X_0` ≤ 1.0000000: bound of the input norm" in text
        assert "**logits**: 8 → 2" in await now.hover("m.lip", 5, 6)
        assert "block wide(width)" in await now.hover("m.lip", 4, 6)
        assert "**dense**: 4 → 8" in await now.hover("m.lip", 0, 22)
        assert "norm ≤ 1" in await now.hover("m.lip", 3, 11)

        found = await now.client.text_document_definition_async(lsp.DefinitionParams(**now.at("m.lip", 4, 5)))
        here = lsp.Range(lsp.Position(0, 6), lsp.Position(0, 10))
        assert found == lsp.Location(now.uri("m.lip"), here)

        now.change("m.lip", MODEL.replace("logits = dense", "logits = dens"))
        (wrong,) = await now.diagnostics("m.lip")
        assert (wrong.code, wrong.source, wrong.severity) == ("LIP011", "lipcompile", lsp.DiagnosticSeverity.Error)
        assert wrong.range == lsp.Range(lsp.Position(5, 13), lsp.Position(5, 17))
        (help_line,) = await now.repairs("m.lip", wrong.range)
        assert help_line.title == "write `dense` for `dens`"
        assert help_line.edit is not None
        assert help_line.edit.changes == {now.uri("m.lip"): [lsp.TextEdit(wrong.range, "dense")]}

        now.change("m.lip", MODEL.replace("constraint=frobenius(3))", "con"))
        (cut,) = await now.diagnostics("m.lip")
        assert cut.code == "LIP010"
        assert {"constraint", "bias", "start"} <= set(await now.words("m.lip", 5, 24))
        assert "wide" in await now.words("m.lip", 4, 6)
        assert await now.formatted("m.lip") == []

        now.change("m.lip", MODEL.replace("    wide(8)", "  wide( 8 )  # 𝔽 é"))
        assert await now.diagnostics("m.lip") == []
        (edit,) = await now.formatted("m.lip")
        assert edit.new_text == MODEL.replace("wide(8)", "wide(8)  # 𝔽 é")

    with_server(tmp_path, talk)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_other_files_and_columns_of_the_client(tmp_path: Path) -> None:
    """Columns count UTF-16: a letter beyond the basic plane counts as two."""
    (tmp_path / "blocks.lip").write_text("# of others\nblock wide(n) { dense(n) }\n")

    async def talk(now: Session) -> None:
        now.open("m.lip", 'import "blocks.lip"\nmodel m { input x: tensor[4], norm <= 1 wide(2) loss kr }\n')
        (wrong,) = await now.diagnostics("m.lip")
        assert wrong.code == "LIP211"
        params = lsp.DefinitionParams(**now.at("m.lip", 1, 42))
        found = await now.client.text_document_definition_async(params)
        assert found == lsp.Location(now.uri("blocks.lip"), lsp.Range(lsp.Position(1, 6), lsp.Position(1, 10)))
        now.change("m.lip", 'model m { input x: tensor[4], norm <= 1 dense(1, share="𝔽", bais=1) loss kr }\n')
        (wrong,) = await now.diagnostics("m.lip")
        assert wrong.range == lsp.Range(lsp.Position(0, 61), lsp.Position(0, 65))
        (help_line,) = await now.repairs("m.lip", lsp.Range(lsp.Position(0, 61), lsp.Position(0, 61)))
        assert help_line.title == "write `bias` for `bais`"

    with_server(tmp_path, talk, ["--stdio"])  # as many clients ask


def test_a_cancelled_request_leaves_the_check_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests wait for one check. The client cancels the first."""
    checking = threading.Event()

    def slow(text: str, path: Path) -> Document:
        assert checking.wait(SECONDS)
        return checked(text, path)

    monkeypatch.setattr("lipcompile.editor.server.checked", slow)

    async def asked(server: Server, uri: str) -> Document:
        first = asyncio.ensure_future(server.document(uri))
        second = asyncio.ensure_future(server.document(uri))
        await asyncio.sleep(0)
        first.cancel()
        checking.set()
        with pytest.raises(asyncio.CancelledError):
            await first
        await second
        return await server.document(uri)

    server, uri = Server(), "untitled:Untitled-1"
    try:
        server.lsp._workspace = Workspace(None)
        server.workspace.put_text_document(lsp.TextDocumentItem(uri, "lip", 1, MODEL))
        assert server.loop.run_until_complete(asyncio.wait_for(asked(server, uri), SECONDS)).diagnostics == ()
    finally:
        server.shutdown()  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_text_without_a_file(tmp_path: Path) -> None:
    """Editors name an unsaved text by `untitled:`. Its diagnostics go to that name."""

    async def talk(now: Session) -> None:
        uri = "untitled:Untitled-1"
        document = lsp.TextDocumentItem(uri, "lip", 1, MODEL.replace("logits = dense", "logits = dens"))
        now.client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
        found = await now.published.get()
        assert (found.uri, [one.code for one in found.diagnostics]) == (uri, ["LIP011"])

    with_server(tmp_path, talk)
