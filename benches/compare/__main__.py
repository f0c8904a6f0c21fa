"""``python -m benches.compare``."""

from benches.compare.command import main

raise SystemExit(main())
