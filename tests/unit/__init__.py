"""Tests without processes, sleeps or frameworks; the folders mirror src."""
