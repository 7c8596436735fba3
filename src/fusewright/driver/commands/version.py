"""Which Fusewright this is: its version, and the commit that it was built from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from ... import __version__

PACKAGE = Path(__file__).resolve().parents[2]
BAKED = "commit.txt"  # beside the package's modules in a wheel; setup.py writes it
SECONDS = 5.0


def version(package: Path = PACKAGE) -> str:
    """`0.1.0 (129b020)`; `, changed` where files of the checkout differ from that commit. Without a commit, the version alone."""
    found = commit(package)
    return f"{__version__} ({found})" if found else __version__


def commit(package: Path = PACKAGE) -> str:
    """Of the checkout that the package lies in, or else what was baked into the wheel; "" where neither says."""
    checkout = package.parents[1]
    if package.parent.name == "src" and (checkout / ".git").exists():
        return _of_checkout(checkout)
    try:
        return (package / BAKED).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _of_checkout(folder: Path) -> str:
    command = ["git", "-C", str(folder), "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=, changed"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):  # no git
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
