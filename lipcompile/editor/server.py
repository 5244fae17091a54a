"""The language server: what the room knows of a text, in the words of the Language Server Protocol (3.17)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lsprotocol import types as lsp
from pygls.server import LanguageServer
from pygls.uris import from_fs_path, to_fs_path
from pygls.workspace import PositionCodec

from lipcompile.diagnostics import Diagnostic, InputError, Location, Severity, told
from lipcompile.editor.completion import Completion, completions
from lipcompile.editor.document import Document, checked, definition, names
from lipcompile.editor.formatting import formatted
from lipcompile.editor.hovering import hover
from lipcompile.editor.words import Argument, Callable
from lipcompile.reports.messages import replacement
from lipcompile.version import __version__

# A text is checked when nothing was typed for so many seconds.
PAUSE = 0.15

_SEVERITIES = {
    Severity.ERROR: lsp.DiagnosticSeverity.Error,
    Severity.WARNING: lsp.DiagnosticSeverity.Warning,
    Severity.NOTE: lsp.DiagnosticSeverity.Information,
}
_KINDS = {
    "layer": lsp.CompletionItemKind.Function,
    "loss": lsp.CompletionItemKind.Function,
    "block": lsp.CompletionItemKind.Class,
    "argument": lsp.CompletionItemKind.Property,
    "value": lsp.CompletionItemKind.Value,
    "keyword": lsp.CompletionItemKind.Keyword,
}


class Server(LanguageServer):
    """Keeps what was found in every open text. One thread checks: limits of recursion are of the whole process."""

    def __init__(self) -> None:
        super().__init__("lipcompile", __version__)
        self._checks = ThreadPoolExecutor(max_workers=1)
        self._found: dict[str, tuple[str, asyncio.Future[Document]]] = {}
        self._parsed: dict[str, Document] = {}

    async def document(self, uri: str) -> Document:
        """Return what is known of the present text of a document."""
        text = self.workspace.get_text_document(uri).source
        if uri not in self._found or self._found[uri][0] != text:
            path = Path(to_fs_path(uri) or "untitled.lip")
            self._found[uri] = text, self.loop.run_in_executor(self._checks, checked, text, path)
        # A client may cancel one request; others wait for the same check.
        found = await asyncio.shield(self._found[uri][1])
        if found.tree is not None:
            self._parsed[uri] = found
        return found

    async def parsed(self, uri: str) -> Document:
        """Return what was known of the last text of a document that could be parsed, else of the present one."""
        found = await self.document(uri)
        return found if found.tree is not None else self._parsed.get(uri, found)

    async def publish(self, uri: str) -> None:
        """Check a document and publish its diagnostics, unless it changes in the meantime."""
        version = self.workspace.get_text_document(uri).version
        await asyncio.sleep(PAUSE)
        if uri not in self.workspace.text_documents or self.workspace.get_text_document(uri).version != version:
            return
        found = await self.document(uri)
        shown = [_diagnostic(one, found, self.codec(uri)) for one in found.diagnostics]
        self.publish_diagnostics(uri, shown, version)

    def codec(self, uri: str) -> PositionCodec:
        """Return what counts columns as the client does."""
        return self.workspace.get_text_document(uri).position_codec

    def forget(self, uri: str) -> None:
        """Forget a document that was closed."""
        self._found.pop(uri, None)
        self._parsed.pop(uri, None)
        self.publish_diagnostics(uri, [])


server = Server()


@server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
async def _opened(ls: Server, params: lsp.DidOpenTextDocumentParams) -> None:
    await ls.publish(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
async def _changed(ls: Server, params: lsp.DidChangeTextDocumentParams) -> None:
    await ls.publish(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
def _closed(ls: Server, params: lsp.DidCloseTextDocumentParams) -> None:
    ls.forget(params.text_document.uri)


@server.feature(lsp.TEXT_DOCUMENT_HOVER)
async def _hover(ls: Server, params: lsp.HoverParams) -> lsp.Hover | None:
    uri = params.text_document.uri
    document = await ls.document(uri)
    text = hover(document, *_place(document, params.position, ls.codec(uri)))
    return None if text is None else lsp.Hover(lsp.MarkupContent(lsp.MarkupKind.Markdown, text))


@server.feature(lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=["(", "=", ","]))
async def _complete(ls: Server, params: lsp.CompletionParams) -> list[lsp.CompletionItem]:
    uri = params.text_document.uri
    text, known = ls.workspace.get_text_document(uri), await ls.parsed(uri)
    blocks = [
        Callable(name, tuple(Argument(parameter.text) for parameter, _ in block.parameters))
        for name, block in known.blocks.items()
    ]
    before = text.source[: text.offset_at_position(params.position)]
    return [
        lsp.CompletionItem(
            one.word, kind=_KINDS[one.kind], detail=one.detail or None, documentation=one.text or None
        )
        for one in completions(before, blocks, names(known, params.position.line + 1))
    ]


@server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
async def _definition(ls: Server, params: lsp.DefinitionParams) -> lsp.Location | None:
    uri = params.text_document.uri
    document = await ls.parsed(uri)
    at = definition(document, *_place(document, params.position, ls.codec(uri)))
    if at is None:
        return None
    if Path(at.file).resolve() == document.path.resolve():
        return lsp.Location(uri, _range(at, document, ls.codec(uri)))
    start = lsp.Position((at.line or 1) - 1, (at.column or 1) - 1)  # only ASCII stands before a name of a block
    end = lsp.Position(start.line, start.character + at.length)
    return lsp.Location(from_fs_path(at.file) or uri, lsp.Range(start, end))


@server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
def _format(ls: Server, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit]:
    text = ls.workspace.get_text_document(params.text_document.uri).source
    try:
        made = formatted(text, "text")
    except InputError:
        return []
    whole = lsp.Range(lsp.Position(0, 0), lsp.Position(text.count("\n") + 1, 0))
    return [] if made == text else [lsp.TextEdit(whole, made)]


@server.feature(
    lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix])
)
async def _quick_fixes(ls: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    uri = params.text_document.uri
    document, codec = await ls.document(uri), ls.codec(uri)
    found = []
    for one in document.diagnostics:
        fix = replacement(one, _line(document.lines, one.location))
        if fix is None:
            continue
        where = _range(fix.at, document, codec)
        if where.end < params.range.start or params.range.end < where.start:
            continue
        edit = lsp.WorkspaceEdit(changes={uri: [lsp.TextEdit(where, fix.text)]})
        shown = [_diagnostic(one, document, codec)]
        found.append(lsp.CodeAction(fix.title, lsp.CodeActionKind.QuickFix, shown, edit=edit, is_preferred=True))
    return found


# Places


def _place(document: Document, at: lsp.Position, codec: PositionCodec) -> tuple[int, int]:
    """Return a place of the client as line and column, which count from 1."""
    found = codec.position_from_client_units(document.lines, at)
    return found.line + 1, found.character + 1


def _range(at: Location, document: Document, codec: PositionCodec) -> lsp.Range:
    line, start = (at.line or 1) - 1, (at.column or 1) - 1
    end = min(start + max(at.length, 1), max(len(_line(document.lines, at) or ""), start))
    lines = [*document.lines, ""]
    return codec.range_to_client_units(lines, lsp.Range(lsp.Position(line, start), lsp.Position(line, end)))


def _line(lines: Sequence[str], at: Location | None) -> str | None:
    return None if at is None or at.line is None or at.line > len(lines) else lines[at.line - 1]


# Answers


def _diagnostic(found: Diagnostic, document: Document, codec: PositionCodec) -> lsp.Diagnostic:
    where = _range(found.location or Location("", 1, 1), document, codec)
    text = told(found, with_code=False)  # editors show the code themselves
    return lsp.Diagnostic(where, text, _SEVERITIES[found.severity], found.code, source="lipcompile")


def _item(found: Completion) -> lsp.CompletionItem:
    return lsp.CompletionItem(
        found.word, kind=_KINDS[found.kind], detail=found.detail or None, documentation=found.text or None
    )
