"""A derivation as people and programs read it: terminal, Markdown, LaTeX, HTML, JSON, SARIF.

`document` decides what is shown, once for all formats; the files beside it render. Reports compute no bound:
what they show stands in the derivation.

Imports: lipcompile.analysis, lipcompile.codes, lipcompile.core, lipcompile.diagnostics, lipcompile.numbers,
lipcompile.ops, lipcompile.version.
"""
