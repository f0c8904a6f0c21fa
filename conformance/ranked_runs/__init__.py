"""Runs of the laws that take ranks, and their list for docs. The laws are in ``conformance.distributed``."""
