"""The exceptions that end a program that does not end by itself."""

from __future__ import annotations


class Timeout(BaseException):
    """Raised into an implementation that does not answer in time. Not an Exception, so that nothing swallows it."""


class Endless(Timeout):
    """Raised into an implementation that keeps calling what it is given; such a run might also end in time by itself."""
