"""Where rows come from: one file per format."""
