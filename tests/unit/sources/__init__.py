"""Tests of penstock.sources."""
