"""Names: which modules a glob of the user's matches, and what a region is called."""
