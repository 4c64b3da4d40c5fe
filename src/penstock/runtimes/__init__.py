"""What executes a model. Importing these modules imports no framework: `load` does."""
