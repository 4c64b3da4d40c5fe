"""What executes a model. Only `load` imports a framework; importing these modules does not."""
