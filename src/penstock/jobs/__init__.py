"""From a model, an input and options to an engine that is ready to run."""
