"""``python -m benches.overhead``."""

from benches.overhead.command import main

raise SystemExit(main())
