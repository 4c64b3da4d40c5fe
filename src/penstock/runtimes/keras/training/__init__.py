"""Training of Keras models: one trainer for each backend, with the step that Keras itself would run."""
