"""The entry point of `lamina`. Ctrl-C ends it with one line, even while it still imports."""

from lamina_workflow.runtime.interruptible import ending_in_one_line


def main() -> None:
    """Run the command line."""
    with ending_in_one_line():
        from lamina_workflow.cli import main as run_command_line

        run_command_line()


if __name__ == "__main__":
    main()
