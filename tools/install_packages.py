"""Install the requirements of a file: with uv, or with pip where uv cannot be had.

uv takes half of pip's time. It reads no settings of pip, so those that say where packages come
from are handed over. Where pip has settings of another kind, pip installs.
"""

import ast
import os
import subprocess
import sys

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PIP_INSTALL = [*PIP, "install", "--quiet"]
UV_VERSION = "0.13.9"
# As pip does it: the best version of all indexes, and compiled before the first start.
UV_INSTALL = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
UV_INSTALL += ["--index-strategy", "unsafe-best-match", "--compile-bytecode"]
# Settings of pip: the variable of uv, and what stands between several values there.
UV_VARIABLES = {
    "cert": ("SSL_CERT_FILE", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
}
# Settings of pip that do not change what is installed.
IGNORED_SETTINGS = {
    "config-file",  # whose settings are listed as well
    "default-timeout",
    "disable-pip-version-check",
    "progress-bar",
    "root-user-action",
    "timeout",
}


def read_pip_settings(listing: str) -> dict[str, str]:
    """The settings that `pip install` obeys, of the lines of `pip config list`.

    A line is such as `global.find-links='/wheels'`.
    """
    settings: dict[str, str] = {}
    for section in ("global", "install", ":env:"):  # each overrides the one before
        for line in listing.splitlines():
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                settings[key.removeprefix(f"{section}.")] = ast.literal_eval(value)
    return settings


def translate_settings(settings: dict[str, str]) -> dict[str, str]:
    """The environment in which uv installs what pip would with these settings.

    Raises LookupError for a setting that uv has no variable for.
    """
    environment: dict[str, str] = {}
    for name in settings.keys() - IGNORED_SETTINGS:
        variable, separator = UV_VARIABLES[name]
        environment[variable] = separator.join(settings[name].split())
    return environment


def install_with_uv(requirements: str) -> None:
    """Raises LookupError or CalledProcessError where uv cannot do what pip would."""
    listing = subprocess.check_output([*PIP, "config", "list"], text=True)
    environment = os.environ | translate_settings(read_pip_settings(listing))
    subprocess.run([*PIP_INSTALL, f"uv=={UV_VERSION}"], check=True)
    subprocess.run([*UV_INSTALL, "--requirement", requirements], env=environment, check=True)


def main() -> None:
    (requirements,) = sys.argv[1:]
    try:
        install_with_uv(requirements)
    except (LookupError, subprocess.CalledProcessError):
        subprocess.run([*PIP_INSTALL, "--requirement", requirements], check=True)


if __name__ == "__main__":
    main()
