"""Tests of penstock.sources.images."""
