"""Which code a published result was measured on, and whether that code has changed since."""
