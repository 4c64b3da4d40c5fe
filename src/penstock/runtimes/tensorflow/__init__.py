"""TensorFlow: SavedModels, graphs, sessions, and the conversion to ONNX."""
