"""Tests of penstock.sources.derived."""
