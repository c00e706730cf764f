"""The entry point of `lamina`, which Ctrl-C also ends with one line while it still imports."""

import sys


def main() -> None:
    """Run the command line."""
    try:
        from lamina_workflow.cli import main as run_command_line

        run_command_line()
    except KeyboardInterrupt:
        sys.exit("lamina: stopped.")


if __name__ == "__main__":
    main()
