"""Ops, a folder a family: rules and proofs, and how torch and ONNX write and read them. `table` lists all.

A family F has `rules.py`, and `F.md` with the proofs that the rules cite; `text.py`, the line of an emitted
module; `onnx_read.py` and `onnx_write.py`. Passes and frontends never name an op: they read its record (`record`).
"""
