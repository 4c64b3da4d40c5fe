"""What the public functions do, one file each."""
