"""Tests of penstock.sources.files."""
