"""Repositories that tests make for themselves."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(root: Path, *arguments: str) -> str:
    """What git prints when it is run in a directory, as somebody with a name."""
    named = "-c", "user.name=me", "-c", "user.email=me@here"
    return subprocess.run(["git", *named, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path, message: str = "all") -> str:
    """Commit all that is in a directory, which becomes a repository if it is none; the commit."""
    if not (root / ".git").exists():
        git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", "--all")
    git(root, "commit", "--allow-empty", "--quiet", "--message", message)
    return git(root, "rev-parse", "HEAD")
