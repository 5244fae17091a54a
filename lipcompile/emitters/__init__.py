"""Writers of programs and files from a derivation: torch modules as text, and ONNX files.

No torch is imported here.
"""
