"""Pure decisions and records: no files, no processes, no clock of its own, no framework."""
