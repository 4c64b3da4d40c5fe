"""Keras models that learn: one trainer for each backend, with the step that Keras itself would run."""
