"""What people see: meters, progress, the summary."""
