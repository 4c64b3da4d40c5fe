"""Rows that Python objects hold: arrays, datasets, generators."""
