"""Programs that go forward and backward on several threads."""
