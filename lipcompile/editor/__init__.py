"""What editors ask for: the layout of a .lip file, and a language server that knows the bounds.

`words` has the vocabulary, of the grammar and of the records of ops. `document` checks a text that is being
written, and finds definitions in it; `hovering` and `completion` answer questions about one. `server` says all of
it in the Language Server Protocol, and is the only module that imports pygls. `pygments_lexer` colours.

Imports: lipcompile.analysis, lipcompile.core, lipcompile.diagnostics, lipcompile.frontends, lipcompile.numbers,
lipcompile.ops, lipcompile.pipeline, lipcompile.reports, lipcompile.version.
"""
