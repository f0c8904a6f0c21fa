"""A record of the operators that run, for the message of an error."""

from __future__ import annotations

from typing import Any

from impls.torch_private import TorchDispatchMode


class OperatorLog(TorchDispatchMode):
    """Writes down the name of every operator that runs while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def format_log(title: str, operators: OperatorLog | None) -> str:
    """The operators under a title, one a line."""
    return "\n  ".join([f"\n{title}:", *(["(not run)"] if operators is None else operators.names)])
