"""Writes models of the compiler as ONNX. Needs numpy and onnx, and no torch."""
