"""The work of the public functions, one file for each."""
