"""What kind of thing was observed, without its numbers, so that laws that show the same can be told together.

It is read from the ``detail`` of a row. Where nothing here knows how that begins, the detail itself is told without
what stands in brackets or quotes and without numbers.
"""

from __future__ import annotations

import re
import textwrap

GRADIENT = "a gradient differs from plain's"
_KINDS = [
    (r"(grad|first)[^:]*: plain .*, here None$", "a gradient is missing"),
    (r"(grad|first)[^:]*: plain None, here ", "there is a gradient where plain has none"),
    (r"(grad|first)[^:]*: (plain |\w+ \S+ under plain)", GRADIENT),
    (r"raised (\w+), but left a gradient that is wrong", r"raised \1, but left a gradient that is wrong"),
    (r"forward[^:]*: (plain |\w+ .* under plain)", "a value of forward differs from plain's"),
    (r"at '.*' \d+ storages are alive", "other storages are alive than is due"),
    (r".*\b(inside|recomputed tensors) are alive", "other recomputed tensors are alive than is due"),
    (r"from step to step the number of objects", "the number of objects of Python changes from step to step"),
    (r"kernels of ", "operators run more or less often than is due"),
    (r"calls of |the function of level|the parent ran", "functions run more or less often than is due"),
    (r"hooks around the program are to see", "hooks around the program see more or fewer tensors than they are to"),
    (r"([^:]*?)( \d+)?(\[\d+\])*: (\w+) \S+ under plain", r"of what is noted as '\1', \4 differs from plain's"),
    (r"([^:]*?)( \d+)?(\[\d+\])*: plain ", r"what is noted as '\1' differs from plain's"),
    (r"([^:]*?)( \d+)?(\[\d+\])*: expected ", r"what is noted as '\1' is not what the law expects"),
]
_KNOWN = [(re.compile(pattern, re.DOTALL), told) for pattern, told in _KINDS]
_PARTICULAR = re.compile(r"\[[^\]]*\]|(?<!\w)'[^']*'|`[^`]*`|\S*<locals>\S*|-?\b\d[\w.+-]*")
_ERROR = re.compile(r"(\w*(?:Error|Exception|Interrupt|Warning)): ")
WORDS, WIDTH = 9, 100


def cause(detail: str) -> str:
    """The kind of observation that a row's detail tells of; "" for none."""
    first = detail.partition("\n")[0]
    if raised := _ERROR.match(first):
        words = _PARTICULAR.sub("…", first[raised.end() :]).split()
        more = " …" if len(words) > WORDS else ""
        return f"raised {raised[1]}: {' '.join(words[:WORDS])}{more}"
    for pattern, told in _KNOWN:
        if found := pattern.match(detail):
            return re.sub(r"\d+", "…", found.expand(told))
    return textwrap.shorten(_PARTICULAR.sub("…", first.partition(", in ")[0]), WIDTH, placeholder=" …")
