"""The worker processes: replica, loader, finisher, and what starts and watches them."""
