"""Methods of repair, one per file with its options; see `lamina.repairs.protocol`."""

from lamina.paths import plugin_packages

__path__.extend(plugin_packages(__name__))
