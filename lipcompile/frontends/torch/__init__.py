"""A torch module -> an ONNX model in memory: where it comes from, how it is traced, and what can go wrong."""
