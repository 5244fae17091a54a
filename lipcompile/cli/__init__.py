"""The command line: one file a command. Commands import slow modules only when they run: `--help` is quick."""

from __future__ import annotations

import click

from lipcompile.cli.audit import audit
from lipcompile.cli.budget import budget
from lipcompile.cli.certify import certify
from lipcompile.cli.check import check
from lipcompile.cli.compile import compile_
from lipcompile.cli.demo import demo
from lipcompile.cli.env import env
from lipcompile.cli.explain import explain
from lipcompile.cli.export import export
from lipcompile.cli.fix import fix
from lipcompile.cli.format import format_
from lipcompile.cli.ledger import ledger
from lipcompile.cli.lsp import lsp
from lipcompile.cli.new import new
from lipcompile.cli.predict import predict
from lipcompile.cli.report import report
from lipcompile.cli.show import show
from lipcompile.cli.train import train
from lipcompile.cli.tune import tune
from lipcompile.cli.verify import verify
from lipcompile.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="lipcompile")
def cli() -> None:
    """Private training in one backward pass: certified gradient bounds, by theorem or by a clip.

    \b
    Start with
      lipcompile demo
      lipcompile check model.lip
    """


# fmt: off
_COMMANDS = (
    new, check, fix, format_, compile_, report, show, budget, train, tune, predict, ledger, audit, certify, verify,
    export, explain, lsp, demo, env,
)
# fmt: on
for _command in _COMMANDS:
    cli.add_command(_command)
