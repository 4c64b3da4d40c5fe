"""Tests of penstock.sources.tables."""
