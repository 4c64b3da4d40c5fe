"""Tests of penstock.options."""
