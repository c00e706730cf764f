"""A GGUF file that is damaged, hostile, or contradicts itself is refused before it costs time."""

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from lamina.errors import LaminaError
from lamina.models import gguf
from lamina.models.dequantise import dequantise_model
from lamina_workflow.checks.load import load_configuration
from tests.given import gguf_files
from tests.given.configurations import minimal_config, set_key, write_model_and_data


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A GGUF file that is right."""
    gguf_files.write(tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: b"PK" + content, "does not begin with the letters GGUF"),
        (lambda content: content[:20], "is too short"),
        (lambda content: content[:60], "ends within its header"),
        (lambda content: content[:-2000], "ends before its tensors do: "),
    ],
)
def test_a_damaged_file_is_refused_when_the_configuration_is_read(
    tmp_path: Path, file: Path, damage: Callable[[bytes], bytes], reason: str
) -> None:
    write_model_and_data(tmp_path)
    raw = set_key(minimal_config(), "models.small", {"source": "tiny.gguf"})
    file.write_bytes(damage(file.read_bytes()))

    with pytest.raises(LaminaError) as refusal:
        load_configuration(raw, tmp_path)

    message = str(refusal.value)
    assert message.startswith("models.small.source: ")
    assert "tiny.gguf is not a complete" in message
    assert reason in message
    assert message.endswith("Download it again, or convert the model again.")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (struct.pack("<I", 1), "has version 1 of the format"),
        (struct.pack(">I", 3), "is for big-endian machines. Convert it with gguf-convert-endian"),
    ],
)
def test_another_version_and_byte_order_are_refused_with_the_remedy(
    file: Path, version: bytes, message: str
) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:4] + version + content[8:])
    with pytest.raises(LaminaError, match=message):
        gguf.read_shape(file, "source")


def test_a_missing_wrong_or_later_shard_is_named(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", n_shards=3)
    first, second, third = sorted(tmp_path.iterdir())
    assert gguf.shard_files(first) == [first, second, third]
    with pytest.raises(LaminaError, match="is shard 2 of 3. Write the first one"):
        gguf.read_shape(second, "source")

    third.rename(tmp_path / "kept")
    with pytest.raises(LaminaError, match="1 of the other 2 .*llama-gguf-split --merge"):
        gguf.read_shape(first, "source")

    third.write_bytes(second.read_bytes())
    with pytest.raises(LaminaError, match="00003-of-00003.gguf is not shard 3 of 3"):
        gguf.read_shape(first, "source")


def rename_tensors(content: bytes) -> bytes:
    return content.replace(b"ffn_gate", b"ffn_gatx")


def set_number(key: str, number: int) -> Callable[[bytes], bytes]:
    """Replace the 4 bytes of a setting's value, which stand after its key and its type."""

    def change(content: bytes) -> bytes:
        start = content.index(key.encode()) + len(key) + 4
        return content[:start] + struct.pack("<I", number) + content[start + 4 :]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            rename_tensors,
            r"has no weights for model.layers.0.mlp.gate_proj.weight.* random",
        ),
        (
            set_number("llama.block_count", 0),
            "says `llama.block_count: 0`, which no model has",
        ),
        (
            set_number("llama.block_count", 2),
            r"stores 3 layers, the last one 2, but says `.*count: 2`",
        ),
        (
            set_number("llama.attention.head_count", 0),
            r"does not load: ZeroDivisionError.*Convert it",
        ),
        (
            set_number("llama.feed_forward_length", 80),
            r"has weights of another shape|weights, but its model",
        ),
        (
            set_number("ggml.bos_token_id", 9999),
            r"the token 9999 for bos, but a vocabulary of \d+ tokens.*tokenizer.json",
        ),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(
    tmp_path: Path, file: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(LaminaError, match=f"source: .*{message}"):
        gguf.read_shape(file, "source")
        dequantise_model(file, tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_a_tokenizer_that_ends_every_text_is_refused(tmp_path: Path) -> None:
    gguf_files.write(tmp_path / "tiny.gguf", flags={"add_eos_token": True})
    message = r"puts <\|im_end\|> after every text.*Put the model's tokenizer.json"
    with pytest.raises(LaminaError, match=message):
        dequantise_model(tmp_path / "tiny.gguf", tmp_path / "checkpoint")


# Types of values by their numbers in the format.
TEXT = 8
LIST = 9
UINT64 = 10
HUGE = 1 << 62
EMPTY_TENSOR = struct.pack("<QIIQ", 0, 0, 0, 0)


def setting(name: str, value_type: int, value: bytes) -> bytes:
    """The bytes of a setting as a header has them."""
    length = struct.pack("<Q", len(name))
    return length + name.encode() + struct.pack("<I", value_type) + value


LLAMA = setting("general.architecture", TEXT, struct.pack("<Q", 5) + b"llama")
ENDLESS_LAYERS = setting("llama.block_count", UINT64, struct.pack("<Q", 1 << 63))


class HostileHeader(NamedTuple):
    """What a header claims to hold, what comes after these counts, and how it is refused."""

    n_settings: int
    n_tensors: int
    body: bytes
    message: str


HOSTILE_HEADERS = {
    "a text without end": HostileHeader(
        1,
        0,
        setting("general.name", TEXT, struct.pack("<Q", HUGE) + b"x"),
        f"the text of 'general.name' would take {HUGE} bytes",
    ),
    "a list without end": HostileHeader(
        1,
        0,
        setting("a", LIST, struct.pack("<IQ", 0, HUGE)),
        f"the list 'a' would take {HUGE} bytes",
    ),
    "a list of texts without end": HostileHeader(
        1,
        0,
        setting("a", LIST, struct.pack("<IQ", TEXT, HUGE)),
        f"claims to have {HUGE} texts in 'a'",
    ),
    "a list of texts beyond the end": HostileHeader(
        1,
        0,
        setting("a", LIST, struct.pack("<IQQ", TEXT, 3, 1 << 63)),
        "'a' would be a list of 3 texts",
    ),
    "a list of lists without end": HostileHeader(
        1,
        0,
        setting("a", LIST, struct.pack("<IQ", LIST, HUGE)),
        "a value of the unknown type 9 under 'a'",
    ),
    "settings without end": HostileHeader(HUGE, 0, b"", f"claims to have {HUGE} settings"),
    "tensors without end": HostileHeader(0, HUGE, b"", f"claims to have {HUGE} tensors"),
    "a million empty tensors": HostileHeader(
        0, 1_000_000, EMPTY_TENSOR * 1_000_000, "claims to have 1000000 tensors"
    ),
    "two tensors of one name": HostileHeader(0, 2, EMPTY_TENSOR * 2, "has the tensor '' twice"),
    "dimensions without end": HostileHeader(
        0, 1, struct.pack("<QI", 0, 1 << 30), "1073741824 dimensions"
    ),
    "layers without end": HostileHeader(
        2, 0, LLAMA + ENDLESS_LAYERS, f"says `llama.block_count: {1 << 63}`, which no model has"
    ),
}


@pytest.mark.parametrize("header", HOSTILE_HEADERS.values(), ids=HOSTILE_HEADERS)
def test_a_hostile_header_is_refused_in_a_second(tmp_path: Path, header: HostileHeader) -> None:
    file = tmp_path / "x.gguf"
    counts = struct.pack("<IQQ", 3, header.n_tensors, header.n_settings)
    file.write_bytes(b"GGUF" + counts + header.body)

    start_seconds = time.process_time()
    with pytest.raises(LaminaError) as refusal:
        gguf.read_shape(file, "models.mine.source")
    assert time.process_time() - start_seconds < 1

    assert str(refusal.value).startswith("models.mine.source: ")
    assert "x.gguf" in str(refusal.value)
    assert header.message in str(refusal.value)
