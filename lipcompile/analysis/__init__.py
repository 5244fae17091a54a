"""Passes over the graph: bounds, requirements, sensitivity; growth with depth; changes that make a bound smaller.

`bounds` evaluates the rules forward and backward. `requirements` decides what a theorem asks for, `clips` which
parameters are clipped instead of it. `depth` has the closed forms of repeated blocks, `changes` the models
that `fix` and what-if propose. Nothing here reads a file or renders.

Imports: lipcompile.core, lipcompile.diagnostics, lipcompile.numbers, lipcompile.ops.
"""
