"""The command line: its subcommands, and how an error ends it.

The status is 0 if all is well, 1 if what was judged, measured or compared is not as it must be, 2 for bad input and if there
is nothing to judge, measure or compare, with one line that says what is wrong, and 130 after an interrupt. ``check`` also has
3, for an error of this package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, CoercionError, CycloptsError, Group, Parameter, UnusedCliTokensError
from rich.console import Console

from conformance.rows.option_values import InvalidOption
from reprise import judging, measuring, results
from reprise.model_check import command as model_check


def check(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Check whether checkpointing is right on your model, and what it saves.

    Args:
        arguments: See reprise check --help
    """
    return model_check.main(arguments)


GROUPS = {
    "Your model": {check: "check mypkg.train:build --impl nested"},
    "Judge": judging.COMMANDS,
    "Results": results.COMMANDS,
    "Measure": measuring.COMMANDS,
}
INVALID = 2
INTERRUPTED = 130  # what a shell reports of a command that an interrupt ended
EPILOGUE = "Example: reprise judge --impl mypkg.mod:checkpoint\n\nreprise COMMAND --help shows the options of a command."


def application() -> App:
    """The subcommands, each in its group."""
    app = App(
        name="reprise",
        help="Judge, compare and reproduce implementations of activation checkpointing.",
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        result_action="return_value",
        version_flags=[],
    )
    app["--help"].show = False  # help need not list itself
    for place, (title, commands) in enumerate(GROUPS.items()):
        group = Group(title, sort_key=place)
        for order, (command, example) in enumerate(commands.items()):
            app.command(command, group=group, sort_key=order, help_epilogue=f"Example: reprise {example}")
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns the exit status."""
    tokens = list(sys.argv[1:] if arguments is None else arguments)
    if tokens[:1] == ["check"]:
        return model_check.main(tokens[1:])  # help and errors of its own
    app = application()
    if arguments is None and not {"", str(Path.cwd())} & {*sys.path}:
        sys.path.insert(0, "")  # so that modules in the user's directory can be imported, as by python -m
    name = f"reprise {tokens[0]}" if tokens and tokens[0] in app else "reprise"
    try:
        return int(app(tokens, exit_on_error=False, print_error=False, console=_console()) or 0)
    except CycloptsError as error:
        return _end(INVALID, f"{name}: {_message(error)} See {name} --help")
    except InvalidOption as error:
        return _end(INVALID, f"{name}: {error}")
    except ModuleNotFoundError as error:
        return _end(INVALID, f"{name} needs the package {error.name}, which {sys.executable} lacks; install it")
    except (OSError, ValueError) as error:
        return _end(INVALID, f"{name}: {error}")
    except KeyboardInterrupt:
        return _end(INTERRUPTED, f"{name}: interrupted")


def _message(error: CycloptsError) -> str:
    """The library's message; the name of the option and the value that was given are added where it lacks them."""
    if isinstance(error, UnusedCliTokensError):
        return f"{' '.join(error.unused_tokens or ())!r} is not accepted here."
    message = " ".join(str(error).split())
    is_ours = isinstance(error, CoercionError) and error.msg is not None and (not error.token or not error.token.keyword)
    if is_ours and error.argument is not None:
        message = f"Invalid value for {error.argument.name}: {message}"
    return message if message.endswith((".", "?")) else f"{message}."


def _console() -> Console:
    """Where help is printed; a pipe has no width of its own."""
    console = Console()
    return console if console.is_terminal else Console(width=100)


def _end(status: int, message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return status
