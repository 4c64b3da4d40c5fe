"""Loss and metrics of predictions that come in order, and the labels that they are compared with."""
