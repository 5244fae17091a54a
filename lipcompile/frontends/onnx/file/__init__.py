"""ONNX files as bytes: limits before protobuf decodes, external data, functions, onnxruntime."""
