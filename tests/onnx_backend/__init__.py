"""The test cases of the `onnx` package as models: what is imported computes what the standard says."""
