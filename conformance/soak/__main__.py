"""``python -m conformance.soak``."""

from conformance.soak.command import main

raise SystemExit(main())
