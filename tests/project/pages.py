"""Runs the code of a page of the documentation, block by block, in a folder of its own.

A fence with a title is a file. A console fence holds commands after `$` and their output. A python fence without a
title runs; a text fence after it is its output.
"""

from __future__ import annotations

import io
import re
import runpy
import shlex
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from lipcompile import __main__

FENCE = re.compile(r'^( *)```(\w+)(?: title="([\w.]+)")?\n(.*?)^\1```$', re.DOTALL | re.MULTILINE)


def run_page(page: Path) -> int:
    """Run all blocks in the current folder; return how many outputs were compared."""
    names: dict[str, object] = {"__name__": "page"}
    compared = 0
    found = ""
    for _, language, title, indented in FENCE.findall(page.read_text(encoding="utf-8")):
        text = textwrap.dedent(indented)
        if title:
            Path(title).write_text(text, encoding="utf-8")
            if language == "python":
                compile(text, title, "exec")
        elif language == "python":
            with output_of() as printed:
                exec(compile(text, str(page), "exec"), names)
            found = printed.getvalue()
        elif language == "text":
            compare(text, found)
            compared += 1
        elif language == "console":
            for block in re.split(r"^\$ ", text.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
                command, _, output = block.partition("\n")
                with output_of() as printed:
                    execute(shlex.split(command))
                compare(output, printed.getvalue())
                compared += 1
    return compared


@contextmanager
def output_of() -> Iterator[io.StringIO]:
    """Collect what is written to standard output and standard error, in order."""
    text = io.StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        yield text


def execute(words: list[str]) -> None:
    """Run a command of ours, or a program of Python, in this process."""
    program, *arguments = words
    if program == "python":
        runpy.run_path(arguments[0], run_name="__main__")
    else:
        assert program == "lipcompile", f"a page runs `{program}`"
        __main__.run(arguments)


def compare(wanted: str, found: str) -> None:
    """Compare an output with the page. A line `…` stands for any lines, `…` in a line for any text in it."""
    lines = [" ".join(line.split()) for line in wanted.strip().splitlines()]
    parts = [r"(.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines]
    text = "".join(f"{' '.join(line.split())}\n" for line in found.strip().splitlines())
    assert re.fullmatch("".join(parts), text), f"the page shows\n{wanted}\nand the program printed\n{found}"
