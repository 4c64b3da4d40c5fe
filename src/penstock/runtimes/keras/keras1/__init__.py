"""Files of Keras 1, read into Keras 3."""
