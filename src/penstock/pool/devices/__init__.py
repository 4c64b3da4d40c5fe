"""What can compute on this machine, and how much memory is left on it."""
