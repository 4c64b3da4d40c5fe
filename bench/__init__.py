"""Penstock against its peers, on one machine and on the same jobs: `python -m bench`."""
