"""``python -m reprise``. ``check`` runs in the user's environment and needs nothing but torch and numpy."""

import os
import sys

INTERRUPTED = 130  # what a shell reports of a command that an interrupt ended


def main() -> int:
    """Run the subcommand in the process's arguments. Returns the exit status."""
    if sys.argv[1:2] == ["check"]:
        return _check(sys.argv[2:])
    try:
        from reprise.command_line import main as others
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in ("cyclopts", "rich"):
            raise
        told = f"reprise needs the package {name}, which this Python lacks: {sys.executable} -m pip install {name}"
        sys.stderr.write(f"{told}\n")
        return 2
    return others()


def _check(arguments: list[str]) -> int:
    """Check a model. After an interrupt this ends the process, since Python may give it another status than this one.

    It does so if the interrupt came while code in C ran code of Python's, as torch does when it is imported.
    """
    try:
        from reprise.model_check.command import main as check

        status = check(arguments)
    except KeyboardInterrupt:  # before the command began, or after it ended
        sys.stderr.write("reprise check: interrupted\n")
        status = INTERRUPTED
    if status == INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


if __name__ == "__main__":
    sys.exit(main())
