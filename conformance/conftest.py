"""The conformance run is a plugin of pytest."""

pytest_plugins = ["conformance.runs.plugin"]
