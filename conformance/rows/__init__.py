"""Rows of results as files hold them: reading and writing them, releases of torch among them, and values of options."""
