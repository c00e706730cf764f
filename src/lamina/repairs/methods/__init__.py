"""Methods of repair, one a file with its options; `lamina.repairs.protocol` says what each has."""

from lamina.paths import plugin_packages

__path__.extend(plugin_packages(__name__))
