"""The version, alone in a file so that no other edit changes it."""

VERSION = "0.1.0"
