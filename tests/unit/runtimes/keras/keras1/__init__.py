"""Tests of penstock.runtimes.keras.keras1."""
