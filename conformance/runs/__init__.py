"""A run of the suite: its options, who is judged, how tests are shared among processes, and where results go."""
