"""Files of this machine and behind URLs: the only modules that open them."""
