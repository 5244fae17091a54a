"""The codes as the rules of a SARIF log: what each means, why, and a wrong and a right example."""

from __future__ import annotations

from typing import Any

from lipcompile.codes import Code, codes

Json = dict[str, Any]

# How a rule's own severity is called among the properties that code scanning orders its findings by.
_URGENCY = {"error": "error", "warning": "warning", "note": "recommendation"}
# The names of the examples' languages for a highlighter; .lip has none.
_HIGHLIGHTED = {"lip": "text", "sh": "sh", "python": "python"}


def rules() -> list[Json]:
    """Return every code as a `reportingDescriptor`, in the order of the table: the same in every log."""
    return [_rule(entry) for entry in codes().values()]


def rule_indices() -> dict[str, int]:
    """Return where each code stands among the rules."""
    return {code: index for index, code in enumerate(codes())}


def _rule(entry: Code) -> Json:
    return {
        "id": entry.code,
        "shortDescription": {"text": entry.title},
        "fullDescription": {"text": _paragraph(entry.why)},
        "help": {"text": _help(entry), "markdown": _markdown(entry)},
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
    return "\n\n".join([*parts, *([f"mend: {entry.command}"] if entry.command else [])])


def _markdown(entry: Code) -> str:
    language = _HIGHLIGHTED[entry.language]
    examples = [
        f"**{label}**\n\n```{language}\n{example.strip()}\n```"
        for label, example in (("wrong", entry.wrong), ("right", entry.right))
    ]
    mend = [f"**mend:** `{entry.command}`"] if entry.command else []
    return "\n\n".join(
        [_paragraph(entry.why), *examples, *mend, f"`lipcompile explain {entry.code}` shows this page."]
    )
