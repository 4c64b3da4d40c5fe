"""Tests of penstock.jobs."""
