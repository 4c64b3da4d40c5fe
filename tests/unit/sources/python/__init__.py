"""Tests of penstock.sources.python."""
