"""Tests of penstock.planning."""
