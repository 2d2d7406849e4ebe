"""`python -P -m recgraph.release publish ...`: for the serving image, in which not every command's packages are."""

from recgraph.release.command import app

app(prog_name="recgraph arms")
