"""Diagnostics as SARIF 2.1.0, the format in which code scanning and editors take the findings of tools.

Source: OASIS, Static Analysis Results Interchange Format Version 2.1.0 plus Errata 01 (2023), and GitHub's list of
the properties that its code scanning reads: it wants a file and a line of every result, and a fingerprint to know
the result again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lipcompile.codes import Code, codes
from lipcompile.diagnostics import Diagnostic, Location
from lipcompile.reports.messages import Lines, Sources, alike, command, line_at, lines_of, replacement
from lipcompile.version import __version__

Json = dict[str, Any]

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
# Codes that complain of the command and the installation, not of a file.
_OF_THE_COMMAND = ("LIP005", "LIP006", "LIP008")
# How a rule's own severity is called among the properties that code scanning orders its findings by.
_URGENCY = {"error": "error", "warning": "warning", "note": "recommendation"}
# The names of the examples' languages for a highlighter; .lip has none.
_HIGHLIGHTED = {"lip": "text", "sh": "sh", "python": "python"}


def rules() -> list[Json]:
    """Return every code as a `reportingDescriptor`, in the order of the table: the same in every log."""
    return [_rule(entry) for entry in codes().values()]


def _rule(entry: Code) -> Json:
    return {
        "id": entry.code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": _paragraph(entry.why)},
        "help": {"text": _help(entry), "markdown": _rule_page(entry)},
        "defaultConfiguration": {"level": entry.severity},
        "properties": {
            "kind": entry.kind,
            "tags": [entry.area, entry.kind],
            "precision": "very-high",
            "problem.severity": _URGENCY[entry.severity],
            **({"command": entry.command} if entry.command else {}),
        },
    }


def _paragraph(text: str) -> str:
    return " ".join(text.split())


def _help(entry: Code) -> str:
    parts = [_paragraph(entry.why), f"wrong:\n{entry.wrong.strip()}", f"right:\n{entry.right.strip()}"]
    return "\n\n".join([*parts, *([f"fix: {entry.command}"] if entry.command else [])])


def _rule_page(entry: Code) -> str:
    language = _HIGHLIGHTED[entry.language]
    examples = [
        f"**{label}**\n\n```{language}\n{example.strip()}\n```"
        for label, example in (("wrong", entry.wrong), ("right", entry.right))
    ]
    help_line = [f"**fix:** `{entry.command}`"] if entry.command else []
    return "\n\n".join(
        [_paragraph(entry.why), *examples, *help_line, f"`lipcompile explain {entry.code}` shows this page."]
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found in one model; `file` is its path, for findings that have no place of their own."""

    file: str
    diagnostics: tuple[Diagnostic, ...]
    readable: bool = True


def log(checked: Sequence[Checked], exit_code: int, sources: Sources) -> Json:
    """Return the log of one run over one or more models; files inside the working folder are named from there."""
    run = _Log(lines_of(sources))
    results = [result for model in checked for result in run.results(model)]
    # Logs of single models are told apart by their files; the last part, after the slash, would name one run.
    category = f"lipcompile/{_uri(checked[0].file)}/" if len(checked) == 1 else "lipcompile/"
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver()},
                "automationDetails": {"id": category},
                "invocations": [_invocation(checked, exit_code, run)],
                "artifacts": run.described([model.file for model in checked]),
                "results": results,
                "columnKind": "unicodeCodePoints",
            }
        ],
    }


def _driver() -> Json:
    return {
        "name": "lipcompile",
        "fullName": f"lipcompile {__version__}, a compiler for private training without gradient clipping",
        "semanticVersion": __version__,
        "rules": rules(),
    }


def _invocation(checked: Sequence[Checked], exit_code: int, run: _Log) -> Json:
    """Return how the run ended; what kept a model from being read is told here, beside the results."""
    missed = [(model.file, found) for model in checked if not model.readable for found in model.diagnostics]
    return {
        "executionSuccessful": not missed,
        "exitCode": exit_code,
        "toolConfigurationNotifications": [run.notification(*m) for m in missed if m[1].code in _OF_THE_COMMAND],
        "toolExecutionNotifications": [run.notification(*m) for m in missed if m[1].code not in _OF_THE_COMMAND],
    }


@dataclass(slots=True)
class _Log:
    """What results share: the files, where each code stands among the rules, and the fingerprints given so far."""

    lines: Lines
    files: dict[str, int] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=lambda: {code: index for index, code in enumerate(codes())})
    seen: Counter[str] = field(default_factory=Counter)

    def results(self, model: Checked) -> Iterator[Json]:
        """Yield one result for each group of findings that differ in their node alone."""
        self._artifact(model.file)
        for group in alike(model.diagnostics):
            yield self._result(group, model.file)

    def described(self, models: Sequence[str]) -> list[Json]:
        """Return the files that anything was found in, and the models."""
        targets = {_uri(file) for file in models}
        return [
            {"location": _located(uri), **({"roles": ["analysisTarget"]} if uri in targets else {})}
            for uri in self.files
        ]

    def notification(self, file: str, found: Diagnostic) -> Json:
        """Return a finding as what happened to the run."""
        return {
            "level": found.severity.value,
            "message": {"text": _text([found], file)},
            "associatedRule": {"id": found.code, "index": self.rules[found.code]},
            "locations": [{"physicalLocation": self._place(found.location or Location(file))}],
        }

    def _artifact(self, file: str) -> int:
        return self.files.setdefault(_uri(file), len(self.files))

    def _result(self, group: Sequence[Diagnostic], file: str) -> Json:
        found = group[0]
        at = found.location or Location(file)
        nodes = _logical(group)
        fixes = self._fixes(found, at)
        return {
            "ruleId": found.code,
            "ruleIndex": self.rules[found.code],
            "level": found.severity.value,
            "message": {"text": _text(group, file), "markdown": _markdown(group, file)},
            "locations": [{"physicalLocation": self._place(at), **({"logicalLocations": nodes} if nodes else {})}],
            "partialFingerprints": {"primaryLocationLineHash": self._fingerprint(found, at)},
            **({"fixes": fixes} if fixes else {}),
            "properties": {"kind": codes()[found.code].kind, "path": list(found.path)},
        }

    def _place(self, at: Location) -> Json:
        where = {**_located(_uri(at.file)), "index": self._artifact(at.file)}
        return {"artifactLocation": where, "region": _region(at, line_at(at, self.lines))}

    def _fingerprint(self, found: Diagnostic, at: Location) -> str:
        """Return what stays when lines move: a hash of the line, or of the node, and a number among equal ones."""
        line = line_at(at, self.lines)
        what = line.strip() if line is not None else f"{found.node}:{found.op}" if found.node else found.message
        digest = sha256(f"{found.code}:{what}".encode("utf-8", "backslashreplace")).hexdigest()[:16]
        self.seen[digest] += 1
        return f"{digest}:{self.seen[digest]}"

    def _fixes(self, found: Diagnostic, at: Location) -> list[Json]:
        """Return the replacement of a misspelt word, where a diagnostic points at one and names the right one."""
        line = line_at(at, self.lines)
        help_line = replacement(found, line)
        if help_line is None:
            return []
        replaced = {"deletedRegion": _region(at, line), "insertedContent": {"text": help_line.text}}
        change = {"artifactLocation": _located(_uri(at.file)), "replacements": [replaced]}
        return [{"description": {"text": help_line.title}, "artifactChanges": [change]}]


def _region(at: Location, line: str | None) -> Json:
    """Return the place in a file. For a whole file it is its beginning: code scanning wants a line."""
    if at.line is None:
        return {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    if at.column is None:
        return {"startLine": at.line, "startColumn": 1, "endLine": at.line, "endColumn": len(line or "") + 1}
    end = at.column + max(at.length, 1)
    if line is not None:  # a complaint about the end of a file points behind its last character
        end = max(at.column, min(end, len(line) + 1))
    return {"startLine": at.line, "startColumn": at.column, "endLine": at.line, "endColumn": end}


def _logical(group: Sequence[Diagnostic]) -> list[Json]:
    return [
        {
            "name": found.node,
            "fullyQualifiedName": "/".join([*found.path, found.node]),
            "kind": "node",
            **({"properties": {"op": found.op}} if found.op else {}),
        }
        for found in group
        if found.node is not None
    ]


def _located(uri: str) -> Json:
    return {"uri": uri, **({} if uri.startswith("file:") else {"uriBaseId": "%SRCROOT%"})}


def _uri(file: str) -> str:
    """Return the path from the working folder, links resolved, or a file URI for what lies outside of it."""
    path, root = Path(file).resolve(), Path.cwd().resolve()
    if not path.is_relative_to(root):
        return path.as_uri()
    return quote(os.fsencode(path.relative_to(root).as_posix()))


# Messages


def _text(group: Sequence[Diagnostic], file: str) -> str:
    """Return the message, which is shown as a title, as a sentence, then where in the graph, and the fix."""
    return "\n".join([_sentence(group[0]), *(f"{label}: {text}" for label, text in _details(group, file))])


def _markdown(group: Sequence[Diagnostic], file: str) -> str:
    parts = [_sentence(group[0]), *(f"**{label}:** {text}" for label, text in _details(group, file))]
    return "\n\n".join(parts)


def _sentence(found: Diagnostic) -> str:
    return found.message if found.message.endswith((".", "!", "?")) else f"{found.message}."


def _details(group: Sequence[Diagnostic], file: str) -> Iterator[tuple[str, str]]:
    found = group[0]
    if found.node is not None and (found.location is None or found.location.line is None):
        yield "node", f"`{found.node}`" + (f" ({found.op})" if found.op else "")
    if found.path:
        yield "path", " → ".join([*found.path, found.node or "…"])
    if found.help:
        yield "help", found.help
    if run := command(found, file):
        yield "run", f"`{run}`"
    if len(group) > 1:
        yield "more", f"{len(group) - 1} like it"
