"""Prints the dependencies of pyproject.toml and of the extras that are named, for a layer without our sources."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
wanted = [*project["dependencies"]]
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
sys.stdout.write("\n".join(wanted) + "\n")
