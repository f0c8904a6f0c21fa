"""Programs written by hand, a module for each family of laws. Each function prints, and runs, as its own source text."""
