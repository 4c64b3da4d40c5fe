"""Tests of penstock.pool."""
