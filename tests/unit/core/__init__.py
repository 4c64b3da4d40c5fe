"""Tests of penstock.core."""
