"""Readers: .lip files, ONNX files and torch modules become a graph, or a diagnostic that says where and why not.

A file may come from anybody: its sizes are measured before anything is decoded or computed. `options` says what
may be asked of every frontend. No bound is derived here.

Imports: lipcompile.analysis, lipcompile.certificates, lipcompile.core, lipcompile.diagnostics,
lipcompile.emitters, lipcompile.limits, lipcompile.numbers, lipcompile.ops.
"""
