"""The options of a job: records, and how they are written in a shell and as keywords."""
