"""What a job may be told: records, how they are written in a shell and as keywords."""
