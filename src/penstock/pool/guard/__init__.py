"""What stands around a replica's model: memory, rejected rows, state, warm-up."""
