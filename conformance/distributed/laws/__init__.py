"""The laws that take ranks, one file a subject."""
