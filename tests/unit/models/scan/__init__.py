"""Tests of penstock.models.scan."""
