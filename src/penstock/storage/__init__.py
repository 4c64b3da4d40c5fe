"""What survives a crash: the lock, the manifest, the journal, and the order in which they are written."""
