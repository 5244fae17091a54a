"""ONNX: how each operator, constant and weight of a file is read."""
