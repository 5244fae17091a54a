"""Writers: a derivation as the text of a torch module, a graph as an ONNX file or in the words of a .lip file.

Neither torch nor onnxruntime is imported at the level of a module. An emitted module calls functions of
`lipcompile_torch`; the backend finds its modules when the command line asks for them.

Imports: lipcompile.analysis, lipcompile.certificates, lipcompile.core, lipcompile.diagnostics,
lipcompile.numbers, lipcompile.ops, lipcompile.version, lipcompile_torch.
"""
