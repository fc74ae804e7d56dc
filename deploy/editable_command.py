"""Puts the command ``turnwire`` into a checkout's environment, and into no published wheel."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class EditableCommand(BuildHookInterface[Any]):
    """Adds the script where the package is installed from a checkout, for work on it."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called once a build."""
        if version == "editable":
            build_data["shared_scripts"]["deploy/command"] = "turnwire"
