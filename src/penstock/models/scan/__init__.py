"""What lies inside a model file, read without executing it."""
