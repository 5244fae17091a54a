"""Ops, a folder a family: rules and proofs, and how torch and ONNX write and read them. `table` lists all.

A family F has, where it needs them, `rules.py`; `F.md`, the proofs (of `conv`: `linear/linear.md`); `write.py`,
the line of an emitted module and the operators of an ONNX file; `onnx_read.py`. `recurrent` has no rules: it is
unrolled. Writers belong to the room `emitters`, readers to `frontends`; no rule imports them.

Imports: lipcompile.core, lipcompile.diagnostics, lipcompile.limits, lipcompile.numbers.
"""
