"""Where Feast's registry is: the default of feature_store.yaml, or RECGRAPH_REGISTRY.

Feast expands variables in the yaml, but knows no defaults. An engine plugin of SQLAlchemy, which the yaml names in
`sqlalchemy_config_kwargs`, does: it replaces the URL when the engine is made.
"""

from __future__ import annotations

import os
from pathlib import Path

from sqlalchemy.dialects import plugins
from sqlalchemy.engine import URL, CreateEnginePlugin, make_url

NAME = "recgraph"
VARIABLE = "RECGRAPH_REGISTRY"


class RegistryAddress(CreateEnginePlugin):
    """Takes the URL of the environment, and makes the folder of an SQLite file."""

    def update_url(self, url: URL) -> URL:
        """The URL to connect to."""
        address = os.environ.get(VARIABLE)
        chosen = make_url(address) if address else url
        if chosen.get_backend_name() == "sqlite" and chosen.database:
            Path(chosen.database).parent.mkdir(parents=True, exist_ok=True)
        return chosen.difference_update_query(["plugin"])


def register() -> None:
    """Makes the plugin known to SQLAlchemy by its name."""
    plugins.register(NAME, __name__, RegistryAddress.__name__)
