"""A source, a sink, a model format and a runtime of another package, each as small as it can be."""
