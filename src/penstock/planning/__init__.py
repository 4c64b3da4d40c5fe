"""The plan of a job: the fastest safe way to run this model here, found by measuring."""
