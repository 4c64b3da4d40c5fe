"""Tests of penstock.models."""
