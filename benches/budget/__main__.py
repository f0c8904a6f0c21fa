"""``python -m benches.budget``."""

from benches.budget.command import main

raise SystemExit(main())
