"""What `lamina --help` says of its commands."""

import inspect

import pytest

from lamina_workflow.cli import app

# Typer writes a command's name with hyphens.
COMMANDS = {
    command.callback.__name__.replace("_", "-"): command.callback
    for command in app.registered_commands
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_how_it_is_called(name: str) -> None:
    summary, *rest = inspect.getdoc(COMMANDS[name]).split("\n\n")
    assert summary.endswith(".")
    example = rest[-1]
    assert example.startswith("```\n")
    assert f"lamina {name}" in example
