"""The page of results: its template, style and program, and the figures and lists that fill it."""
