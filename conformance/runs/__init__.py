"""A run of the suite: its pytest plugin and options, what it judges, how tests are shared out, and where results go."""
