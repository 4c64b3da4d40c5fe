"""Tests of penstock.sources.audio."""
