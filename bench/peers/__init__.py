"""Scripts that run in the peers' own environment; nothing here is imported by the benchmark itself."""
