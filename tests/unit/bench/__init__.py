"""The parts of the benchmark that decide something."""
