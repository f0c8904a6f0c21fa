"""From a verdict to a standalone script that shows it: rendered, made smaller, stored, and run again."""
