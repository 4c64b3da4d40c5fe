"""Tests of penstock.pool.guard."""
