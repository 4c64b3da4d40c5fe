"""Running a job on many machines: a driver that owns the output, and a node on each machine that builds parts."""
