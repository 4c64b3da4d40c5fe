"""How batches and results travel between processes: through slots, as bytes."""
