"""What `lamina --help` says of its commands."""

import inspect
import shlex

import pytest
import typer

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


def read_examples(name: str) -> list[list[str]]:
    """The words of each `lamina` in the examples of a command."""
    lines = inspect.getdoc(COMMANDS[name]).split("```")[1].strip().splitlines()
    examples = []
    for line in lines:
        for process in line.partition(">")[0].replace("|", "&&").split("&&"):
            words = shlex.split(process)
            if words[0] == "lamina":
                examples.append(words[1:])
    return examples


@pytest.mark.parametrize("name", COMMANDS)
def test_its_examples_are_commands_with_options_that_exist(name: str) -> None:
    group = typer.main.get_command(app)

    examples = read_examples(name)

    assert name in [command for command, *_ in examples]
    for command, *arguments in examples:
        group.commands[command].make_context(command, arguments)
