"""JAX: Keras models, exported functions, StableHLO."""
