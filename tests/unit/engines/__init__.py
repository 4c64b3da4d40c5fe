"""Tests of penstock.engines."""
