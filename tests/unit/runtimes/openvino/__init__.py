"""Tests of penstock.runtimes.openvino."""
