"""Tests of penstock.runtimes.tflite."""
