"""Tests of penstock.sources.tfrecord."""
