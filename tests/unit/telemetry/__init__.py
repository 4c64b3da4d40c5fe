"""Tests of penstock.telemetry."""
