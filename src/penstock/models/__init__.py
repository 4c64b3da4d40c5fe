"""What a model is before any framework has seen it: recognised by its files, digested, never executed."""
