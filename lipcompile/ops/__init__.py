"""Ops, a folder a family: rules and proofs, and how torch and ONNX write and read them. `table` lists all.

A family F has `rules.py`, and the proofs that its rules cite in `F.md`; `text.py`, the line of an emitted
module; `onnx_read.py` and `onnx_write.py`. Writers belong to the room `emitters`, readers to `frontends`; no
rule imports them.

Imports: lipcompile.core, lipcompile.diagnostics, lipcompile.limits, lipcompile.numbers.
"""
