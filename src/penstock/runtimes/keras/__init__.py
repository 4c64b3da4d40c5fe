"""Keras models on any backend: loading, calling, their state."""
