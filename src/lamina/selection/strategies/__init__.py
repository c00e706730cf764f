"""Strategies, one per file."""

from lamina.paths import plugin_packages

__path__.extend(plugin_packages(__name__))
