"""Tests of penstock.runtimes.keras."""
