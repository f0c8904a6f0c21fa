"""The page of results: its template, style and program, and the tables, guide and figures that fill it."""
