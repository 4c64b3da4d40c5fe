"""What runs a job: processes of this machine (local), or threads of this process (embedded)."""
