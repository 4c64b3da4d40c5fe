"""Tests of penstock.storage."""
