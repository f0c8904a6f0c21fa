"""What ends a program that does not end by itself."""

from __future__ import annotations


class Timeout(BaseException):
    """Raised into an implementation that does not answer in time. Not an Exception, so that nothing swallows it."""


class Endless(Timeout):
    """Raised into one that calls what it is given without end; by itself the run may end before its time is over."""
