"""Pages of the documentation site that are made from the sources: a hook of MkDocs (`mkdocs.yml`).

Proofs, the language, benchmarks and the changelog are read where they stand. Diagnostics, schemas, commands and
the Python reference are written from the records that the program itself uses. Links between files of the
repository become links of the site.
"""

from __future__ import annotations

import ast
import html
import inspect
import json
import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

from lipcompile.cli import cli
from lipcompile.cli.explain import KINDS
from lipcompile.codes import Code, codes

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

# Page of the site -> file of the repository.
INCLUDED = {
    "index.md": "README.md",
    "reference/language.md": "grammar/README.md",
    "benchmarks.md": "benchmarks/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
} | {f"proofs/{path.name}": str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("lipcompile/ops/*/*.md"))}
PLACES = {source: page for page, source in INCLUDED.items()}

# Page of the Python reference -> its title, and the modules whose `__all__` it documents.
PYTHON = {
    "lipcompile": ("The compiler: `lipcompile`", ["lipcompile"]),
    "sklearn": ("Estimators for scikit-learn: `lipcompile.sklearn`", ["lipcompile.sklearn"]),
    "torch": ("Engine and constraints: `lipcompile_torch`", ["lipcompile_torch"]),
    "verify": ("The verifier: `lipcompile_verify`", ["lipcompile_verify"]),
}
# Modules without `__all__`: mkdocstrings lists their public names.
WHOLE = {
    "layers": (
        "Layers and losses of emitted modules",
        ["lipcompile_torch.nn.layers", "lipcompile_torch.nn.losses", "lipcompile_torch.nn.functional"],
    ),
    "privacy": (
        "Accounting: `lipcompile_privacy`",
        [
            "lipcompile_privacy.accounting",
            "lipcompile_privacy.factorisation",
            "lipcompile_privacy.planning",
            "lipcompile_privacy.ledger",
            "lipcompile_privacy.guesses",
            "lipcompile_privacy.selection",
            "lipcompile_privacy.errors",
        ],
    ),
    "lightning": ("PyTorch Lightning: `lipcompile_torch.lightning`", ["lipcompile_torch.lightning"]),
    "tables": (
        "Tables: `lipcompile.tables`",
        [f"lipcompile.tables.{name}" for name in ("schema", "schema_file", "guess", "stream", "tokens")],
    ),
    "training": (
        "Training and audits: `lipcompile_torch.train`, `lipcompile_torch.audit`",
        [
            "lipcompile_torch.train.training",
            "lipcompile_torch.train.loss_clipping",
            "lipcompile_torch.train.sums",
            "lipcompile_torch.audit.game",
        ],
    ),
    "ops": (
        "For ops of your own",
        [
            "lipcompile.core.record",
            "lipcompile.core.graph",
            "lipcompile.diagnostics",
            "lipcompile.ops.rules",
            "lipcompile.numbers",
            "lipcompile.emitters.torch.expressions",
        ],
    ),
}

MERMAID = re.compile(r"^```mermaid.*?^```\n", re.DOTALL | re.MULTILINE)  # its script would come from the network
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show fences `math` as formulas."""
    fences = [{"name": "math", "class": "math", "format": display}]
    config.mdx_configs.setdefault("pymdownx.superfences", {})["custom_fences"] = fences
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that have no file in `docs/`."""
    for name, text in generated():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Make links of the repository links of the site, and codes of diagnostics links to their pages."""
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]  # the tabs suffice, and commands need the width
    text = MERMAID.sub("The file `CONTRIBUTING.md` of the repository has the picture.\n", markdown)
    pieces = CODE.split(text)
    pieces[::2] = [_with_codes(piece, here) for piece in pieces[::2]]
    return LINK.sub(lambda found: _relinked(found, here), "".join(pieces))


def display(source: str, *_: Any, **__: Any) -> str:
    """Return a fence `math` as MathML, which browsers show without a script or a font of the network."""
    return f'<div class="math">{convert(source, display="block")}</div>'


def generated() -> Iterator[tuple[str, str]]:
    """Yield the paths of pages below `docs/`, and their text."""
    for page, source in INCLUDED.items():
        yield page, (ROOT / source).read_text(encoding="utf-8")
    yield "rooms.md", "# Rooms\n\nEach folder of the source has one subject.\n\n" + "\n".join(map(_room, rooms()))
    yield "reference/cli.md", "# Command line\n\n" + "\n".join(map(_command, sorted(cli.commands)))
    yield "reference/diagnostics/index.md", _index()
    for code in codes().values():
        yield f"reference/diagnostics/{code.code}.md", _diagnostic(code)
    schemas = sorted(ROOT.glob("lipcompile/reports/*.schema.json"))
    yield "reference/schemas/index.md", "# JSON schemas\n\n" + "\n".join(map(_schema, schemas))
    for path in schemas:
        yield f"reference/schemas/{path.name}", path.read_text(encoding="utf-8")
    for name, (title, modules) in PYTHON.items():
        yield f"reference/python/{name}.md", _python(title, [f"{m}.{n}" for m in modules for n in public(m)])
    for name, (title, modules) in WHOLE.items():
        yield f"reference/python/{name}.md", _python(title, modules)


def public(module: str) -> list[str]:
    """Return the public names of a module that have a place in the reference, functions first."""
    names: list[str] = import_module(module).__all__
    return sorted((name for name in names if not name.startswith("__")), key=lambda name: name[0].isupper())


def rooms() -> list[Path]:
    """Return the folders of the source whose `__init__.py` has a page."""
    found = [*ROOT.glob("lipcompile/**/__init__.py"), *ROOT.glob("backends/**/__init__.py")]
    return sorted(path for path in found if ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))))


def _room(path: Path) -> str:
    words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return f"## `{path.parent.relative_to(ROOT)}`\n\n```text\n{words}\n```\n"


def _python(title: str, names: list[str]) -> str:
    return f"# {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)


def _command(name: str) -> str:
    """Return the section of a command, from its parser."""
    command = cli.commands[name]
    context = click.Context(command, info_name=f"lipcompile {name}")
    records = [
        record
        for record in (param.get_help_record(context) for param in command.get_params(context))
        if record and record[1]
    ]
    rows = [f"| <code>{_cell(option)}</code> | {_cell(meaning)} |" for option, meaning in records]
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"## {name}", f"```console\n$ lipcompile {name} {usage}\n```"]
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        verbatim = paragraph.removeprefix("\b\n")  # click's mark of lines that keep their breaks
        title, _, lines = verbatim.partition("\n")
        kept = f"{title}\n\n```console\n{re.sub(r'^ *', '$ ', lines, flags=re.MULTILINE)}\n```"
        parts.append(paragraph if verbatim == paragraph else kept)
    return "\n\n".join([*parts, "\n".join(["| option | meaning |\n|---|---|", *rows])]) + "\n"


def _cell(text: str) -> str:
    """Return a text that may stand in a cell of a table."""
    return html.escape(text).replace("|", "&#124;").replace("*", "&#42;")


def _index() -> str:
    rows = [f"| [{c.code}]({c.code}.md) | {c.title} | {c.kind} |" for c in codes().values()]
    kinds = [f"- **{kind}**: {meaning}." for kind, meaning in KINDS.items()]
    return "\n".join(
        [
            "# Diagnostics\n",
            "Every error, warning and note has a code. `lipcompile explain LIP101` prints the page of a code.\n",
            *kinds,
            "\n| code | meaning | kind |\n|---|---|---|",
            *rows,
        ]
    )


def _diagnostic(code: Code) -> str:
    parts = [
        f"# {code.code}: {code.title}",
        "[All diagnostics](index.md)",
        f"*{code.severity}, {code.kind}*: {KINDS[code.kind]}.",
        code.why.strip(),
    ]
    for title, example in (("Wrong", code.wrong), ("Right", code.right)):
        parts += [f"## {title}", f"```{code.language}\n{example.strip()}\n```"]
    if code.command:
        parts += ["## Fix", f"```console\n$ {code.command}\n```"]
    return "\n\n".join(parts) + "\n"


def _schema(path: Path) -> str:
    schema = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        f"| `{name}` | {_type(value)} | {value.get('description', '')} |"
        for name, value in schema["properties"].items()
    ]
    return "\n".join(
        [
            f"## `{schema['$id']}`\n",
            f"{schema.get('description', '')}\n",
            f"The schema: [{path.name}]({path.name}).\n",
            "| key | type | meaning |\n|---|---|---|",
            *rows,
            "",
        ]
    )


def _type(value: dict[str, Any]) -> str:
    kind = value.get("type", "")
    if isinstance(kind, list):
        return " or ".join(kind)
    return f"`{json.dumps(value['const'])}`" if "const" in value else kind or "see the schema"


def _with_codes(text: str, here: str) -> str:
    """Link each code in a text without code blocks, except on the pages of codes."""
    if here.startswith("reference/diagnostics/"):
        return text
    place = posixpath.relpath("reference/diagnostics", posixpath.dirname(here) or ".")
    known = codes()
    return re.sub(
        r"(?<![\w\[/-])LIP\d{3}(?!\w)", lambda m: f"[{m[0]}]({place}/{m[0]}.md)" if m[0] in known else m[0], text
    )


def _relinked(found: re.Match[str], here: str) -> str:
    """Return a link between files of the repository as one between pages; without a page, its text alone."""
    text, target, anchor = found[1], found[2], found[3] or ""
    source = INCLUDED.get(here, f"docs/{here}")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if ":" in target or not (ROOT / wanted).exists():
        return found[0]  # of the web, or a page that is made here: MkDocs checks it
    page = PLACES.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
    if page is None:
        return text
    return f"[{text}]({posixpath.relpath(page, posixpath.dirname(here) or '.')}{anchor})"
