"""The version, alone in a file so that no other edit changes the file."""

VERSION = "0.1.0"
