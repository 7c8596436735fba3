"""What pyproject.toml cannot say: a wheel knows the commit that it was built from."""

import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

BAKED = "commit.txt"  # read by src/fusewright/driver/commands/version.py


class WithCommit(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # a checkout asks git each time
            (Path(self.build_lib) / "fusewright" / BAKED).write_text(f"{commit()}\n", encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        baked = [] if self.editable_mode else [str(Path(self.build_lib) / "fusewright" / BAKED)]
        return [*super().get_outputs(include_bytecode), *baked]


def commit() -> str:
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=7", "--dirty=, changed"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    except OSError:  # no git
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


setup(cmdclass={"build_py": WithCommit})
