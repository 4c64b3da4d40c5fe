"""Tests of penstock.pool.processes."""
