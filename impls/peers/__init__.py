"""Adapters for implementations that others ship: each imports a package and declares what it claims."""
