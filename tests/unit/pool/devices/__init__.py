"""Tests of penstock.pool.devices."""
