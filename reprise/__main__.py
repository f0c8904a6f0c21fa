"""``python -m reprise``."""

import sys

try:
    from reprise.command_line import main
except ModuleNotFoundError as error:
    if error.name not in ("cyclopts", "rich"):
        raise
    sys.exit(f"reprise needs the package {error.name}, which this Python lacks: {sys.executable} -m pip install {error.name}")

if __name__ == "__main__":
    sys.exit(main())
