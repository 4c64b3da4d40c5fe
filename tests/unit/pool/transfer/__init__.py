"""Tests of penstock.pool.transfer."""
