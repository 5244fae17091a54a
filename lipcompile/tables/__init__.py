"""People's own tables: a schema of public facts, readers of files and frames, and rows as a matrix of numbers.

`read` yields the rows of any source. `encode` maps each row by itself to numbers, as a `schema` says, so that one
person's row changes one row of the matrix. An error names files and columns, never a value of a row. `guess` reads
kinds of columns from the rows, and of public rows also ranges; `encode` reads classes. Callers say so. `tokens`
reads texts by a tokenizer that the user names.

Imports: lipcompile.diagnostics.
"""
