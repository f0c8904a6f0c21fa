"""``python -m reprise``. ``check`` runs in the user's environment and needs nothing but torch and numpy."""

import sys


def main() -> int:
    """Run the subcommand in the process's arguments. Returns the exit status."""
    if sys.argv[1:2] == ["check"]:
        from reprise.model_check.command import main as check

        return check(sys.argv[2:])
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


if __name__ == "__main__":
    sys.exit(main())
