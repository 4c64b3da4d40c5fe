"""Training: rows in a seeded order, global batches, and the loop over them."""
