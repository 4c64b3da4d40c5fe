"""One file for each kind of model file."""
