"""Tests of penstock.commands."""
