"""LiteRT, for TensorFlow Lite files."""
