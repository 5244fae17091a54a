"""The graph: ops as records, nodes, parameters and losses; the derivation; what a backend offers.

A pass walks a `Graph` and reads the record of each op (`record`); it never asks for an op by name. What a pass
finds stands in a `Derivation`, which reports show and emitters write. No formula is derived here, and nothing
is printed.

Imports: lipcompile.diagnostics, lipcompile.limits, lipcompile.numbers.
"""
