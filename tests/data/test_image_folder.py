"""A folder of images for each class: what is read, and what is refused in one line."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from tests.cases import each_case
from transformer_theory import data
from transformer_theory.data.image_sets import image_tokens


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFORMER_THEORY_DATA", str(tmp_path / "home"))


def picture(path: Path, *, mode="RGB", size=(8, 8), value=100, **settings):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    kind = (
        Image.fromarray(np.full(shape, value, np.uint8)) if mode in ("RGB", "L") else Image.new(mode, size, 1)
    )
    kind.save(path, **settings)
    return path


def folder(
    root: Path, splits=("train", "test"), classes=("cat", "dog"), each=3, suffix=".png", **settings
) -> Path:
    for i, split in enumerate(splits):
        for j, name in enumerate(classes):
            for k in range(each):
                picture(root / split / name / f"{k}{suffix}", value=100 * i + 20 * j + k, **settings)
    return root


def refused(path, match, **settings):
    with pytest.raises(ValueError, match=match) as error:
        data.images(path, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "val"), ("training", "valid")])
def test_a_folder_with_its_own_split(tmp_path, splits):
    train, test = data.images(folder(tmp_path / "pets", splits))
    assert train.name == test.name == "pets"
    assert train.names == ("cat", "dog")
    assert train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert train.pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 20, 21, 22]
    assert test.pixels[:, 2, 7, 7].tolist() == [100, 101, 102, 120, 121, 122]


@pytest.mark.parametrize("splits", [("",), ("train",)])
def test_a_folder_without_a_split_is_split_alike_each_time(tmp_path, splits):
    train, test = data.images(folder(tmp_path / "pets", splits, each=10))
    assert train.name == "pets (split 80/20)"
    assert train.labels.bincount().tolist() == [8, 8]
    assert test.labels.bincount().tolist() == [2, 2]
    assert data.images(tmp_path / "pets")[1].pixels.tolist() == test.pixels.tolist()


def test_rare_classes_are_trained_and_said(tmp_path):
    counts = dict(zip("abcdefghij", (20, 10, 5, 2, 2, 1, 1, 1, 1, 1)))
    for value, (name, count) in enumerate(counts.items()):
        for k in range(count):
            picture(tmp_path / "pets" / name / f"{k}.png", value=value)
    lines, (train, test) = said_of(tmp_path / "pets")
    assert train.labels.bincount().tolist()[:2] == [16, 8]
    assert set(train.labels.tolist()) == set(range(10))
    assert len(train) + len(test) == 44
    untested = [name for label, name in enumerate(counts) if label not in test.labels.tolist()]
    assert {*"fghij"} <= {*untested}
    expected = f"{len(untested)} of 10 classes have no test image, so no accuracy: {', '.join(untested)}"
    assert lines == [f"{tmp_path / 'pets'}: {expected}"]
    assert train.pixels[:, 0, 0, 0].tolist() == train.labels.tolist()


def test_classes_without_test_images_are_said(tmp_path):
    pets = folder(tmp_path / "pets", classes=("cat", "dog", "mouse"))
    for file in (pets / "test/dog").iterdir():
        file.unlink()
    (pets / "test/dog").rmdir()
    assert said_of(pets)[0] == [f"{pets}: 1 of 3 classes have no test image, so no accuracy: dog"]


def test_rows_and_channels_stand_where_they_should(tmp_path):
    (
        picture(tmp_path / "a" / "0.png"),
        picture(tmp_path / "b" / "0.png"),
        picture(tmp_path / "b" / "1.png"),
        picture(tmp_path / "b" / "2.png"),
    )
    array = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    Image.fromarray(array).save(tmp_path / "a" / "0.png")
    train, test = data.images(tmp_path)
    whole = [image for part in (train, test) for image, label in zip(part.pixels, part.labels) if label == 0]
    assert whole[0][2, 1, 4] == array[1, 4, 2]


def test_jpegs_are_named_and_may_be_grey(tmp_path):
    train, _ = data.images(folder(tmp_path / "cifar10", suffix=".JPG", mode="L"))
    assert train.name == "cifar10 (JPEG copy)"
    assert train.channels == 1


def test_class_names_of_any_script_and_one_called_train(tmp_path):
    train, _ = data.images(folder(tmp_path / "写真", classes=("train", "猫", "Öl und Essig")))
    assert train.names == ("train", "Öl und Essig", "猫")
    flat, _ = data.images(folder(tmp_path / "flat", ("",), classes=("car", "train")))
    assert flat.names == ("car", "train")


def test_hidden_files_are_ignored(tmp_path):
    folder(tmp_path / "pets")
    for place in ("", "train", "train/cat"):
        (tmp_path / "pets" / place / ".DS_Store").write_bytes(b"x")
    (tmp_path / "pets" / "train" / ".cache").mkdir()
    assert len(data.images(tmp_path / "pets")[0]) == 6


def test_images_of_several_sizes(tmp_path):
    folder(tmp_path / "pets")
    picture(tmp_path / "pets/train/cat/1.png", size=(9, 7))
    refused(
        tmp_path / "pets",
        r"of one size, .*cat/0.png has 8 x 8 and .*cat/1.png 9 x 7 pixels; pass size= to scale and crop them",
    )
    train, test = data.images(tmp_path / "pets", size=4)
    assert train.size == test.size == 4
    folder(tmp_path / "long", size=(8, 6))
    refused(tmp_path / "long", r"must be square, .*0.png has 8 x 6 pixels; pass size=")


def test_a_test_image_of_another_size(tmp_path):
    folder(tmp_path / "pets")
    picture(tmp_path / "pets/test/dog/2.png", size=(4, 4))
    refused(tmp_path / "pets", "test/dog/2.png 4 x 4 pixels")


def said_of(path, **settings) -> tuple[list[str], tuple]:
    lines = []
    return lines, data.images(path, progress=lines.append, **settings)


def test_kinds_of_pixels_are_read_as_one_with_one_message(tmp_path):
    pets = folder(tmp_path / "pets")
    picture(pets / "train/cat/0.png", mode="L", value=7)
    picture(pets / "test/dog/0.png", mode="L")
    picture(pets / "train/cat/1.png", mode="1")
    Image.fromarray(np.uint8([[[255, 0, 0, 255], [0, 0, 0, 0]], [[0, 0, 255, 51], [9, 9, 9, 255]]])).resize(
        (8, 8), 0
    ).save(pets / "train/dog/1.png")
    palette = Image.new("P", (8, 8), 3)
    palette.putpalette([0] * 9 + [10, 20, 30])
    palette.save(pets / "train/dog/0.png")
    lines, (train, test) = said_of(pets)
    assert lines == [
        f"{pets}: 1 one bit, 2 grey, 1 palette, 1 RGBA of 12 images are read as RGB, transparent pixels on "
        "white"
    ]
    assert train.channels == test.channels == 3
    assert train.pixels[0, :, 0, 0].tolist() == [7, 7, 7]
    assert train.pixels[1].unique().tolist() == [255]
    assert train.pixels[3, :, 5, 5].tolist() == [10, 20, 30]
    corners = train.pixels[4][:, [0, 0, 7, 7], [0, 7, 0, 7]].T.tolist()
    assert corners == [[255, 0, 0], [255, 255, 255], [204, 204, 255], [9, 9, 9]]


def test_grey_alone_stays_grey_without_a_message(tmp_path):
    assert said_of(folder(tmp_path / "pets", mode="L"))[0] == []
    Image.new("LA", (8, 8), (0, 51)).save(tmp_path / "pets/train/dog/1.png")
    lines, (train, _) = said_of(tmp_path / "pets")
    assert lines[0].endswith(
        "1 grey with transparency of 12 images are read as grey, transparent pixels on white"
    )
    assert train.pixels[4].unique().tolist() == [204]


def test_more_than_8_bits_are_refused(tmp_path):
    picture(folder(tmp_path / "pets") / "train/dog/1.png", mode="I;16")
    refused(
        tmp_path / "pets", "dog/1.png must be grey or colour of 8 bits per channel, got Pillow's mode I;16"
    )


def png(bits: int, colour: int, rows: bytes, *chunks: tuple[bytes, bytes], size=(8, 8)) -> bytes:
    """A PNG written by hand: ``rows`` are the bytes of all rows, without filters."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    width = len(rows) // size[1]
    lines = b"".join(b"\0" + rows[i * width : (i + 1) * width] for i in range(size[1]))
    header = struct.pack(">IIBBBBB", *size, bits, colour, 0, 0, 0)
    body = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(lines)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in body)


def tiff(bits: int, channels: int, content: bytes, *, sample_format: int = 1, size=(8, 8)) -> bytes:
    """A TIFF of one uncompressed strip, little endian, written by hand."""
    extra = [(338, 3, 1, 2)] * (channels == 4)  # a channel of transparency
    count = 11 + len(extra)
    offset = 8 + 2 + 12 * count + 4
    arrays = struct.pack(f"<{channels}H", *[bits] * channels) + struct.pack(
        f"<{channels}H", *[sample_format] * channels
    )
    short = (bits, sample_format) if channels == 1 else (offset, offset + 2 * channels)
    tags = [
        (256, 3, 1, size[0]),
        (257, 3, 1, size[1]),
        (258, 3, channels, short[0]),
        (259, 3, 1, 1),
        (262, 3, 1, 1 if channels == 1 else 2),
        (273, 4, 1, offset + len(arrays)),
        (277, 3, 1, channels),
        (278, 3, 1, size[1]),
        (279, 4, 1, len(content)),
        (284, 3, 1, 1),
        *extra,
        (339, 3, channels, short[1]),
    ]
    entries = b"".join(struct.pack("<HHII", *tag) for tag in tags)
    return b"II*\0" + struct.pack("<IH", 8, count) + entries + bytes(4) + arrays + content


DEEP = np.arange(8 * 8 * 4, dtype=np.uint16) % 4096  # as of a camera of 12 bits


@each_case(
    ("content", "got"),
    [
        (png(16, 2, DEEP[: 8 * 8 * 3].astype(">u2").tobytes()), "16 bits per channel"),
        (png(16, 6, DEEP.astype(">u2").tobytes()), "16 bits per channel"),
        (png(16, 4, DEEP[: 8 * 8 * 2].astype(">u2").tobytes()), "16 bits per channel"),
        (png(16, 0, DEEP[: 8 * 8].astype(">u2").tobytes()), "Pillow's mode I;16"),
        (tiff(16, 3, DEEP[: 8 * 8 * 3].astype("<u2").tobytes()), "16 bits per channel"),
        (tiff(16, 4, DEEP.astype("<u2").tobytes()), "16 bits per channel"),
        (tiff(32, 1, np.ones(64, "<f4").tobytes(), sample_format=3), "Pillow's mode F"),
        (b"P6\n8 8\n65535\n" + DEEP[: 8 * 8 * 3].astype(">u2").tobytes(), "16 bits per channel"),
        (b"P6\n8 8\n4095\n" + DEEP[: 8 * 8 * 3].astype(">u2").tobytes(), "12 bits per channel"),
        (b"P3\n8 8\n1023\n" + b"7 " * 192, "10 bits per channel"),
        (b"PF\n8 8\n-1.0\n" + np.ones(192, "<f4").tobytes(), "not a readable image"),
    ],
)
def test_channels_of_more_than_8_bits_are_refused_in_every_format(tmp_path, content, got):
    (folder(tmp_path / "pets") / "train/dog/1.png").write_bytes(content)
    expected = (
        got if "readable" in got else f"must be grey or colour of 8 bits per channel, got {got}; scale it"
    )
    refused(tmp_path / "pets", f"dog/1.png (is )?{expected}")


@each_case(
    ("content", "value"),
    [
        (tiff(8, 3, bytes([40]) * 192), 40),
        (b"P6\n8 8\n255\n" + bytes([40]) * 192, 40),
        (b"P6\n8 8\n100\n" + bytes([40]) * 192, 102),  # 40 of 100
        (png(8, 2, bytes([40]) * 192), 40),
        (png(4, 0, bytes([0x44]) * 32), 68),  # 4 of 15
    ],
)
def test_channels_of_at_most_8_bits_are_read_with_their_whole_range(tmp_path, content, value):
    (folder(tmp_path / "pets") / "train/dog/1.png").write_bytes(content)
    train, _ = data.images(tmp_path / "pets", progress=lambda line: None)
    assert train.pixels[4].unique().tolist() == [value]


@each_case(
    ("content", "kind", "left", "right"),
    [
        # the left half of each image has the transparent value, the right half another
        (
            png(8, 2, (bytes(12) + b"\7" * 12) * 8, (b"tRNS", bytes(6))),
            "RGB with one transparent colour",
            255,
            7,
        ),
        (
            png(8, 0, (b"\5" * 4 + b"\7" * 4) * 8, (b"tRNS", b"\0\5")),
            "grey with one transparent value",
            255,
            7,
        ),
        (png(2, 0, b"\x55\xaa" * 8, (b"tRNS", b"\0\1")), "grey with one transparent value", 255, 170),
        (png(4, 0, b"\x33\x33\x88\x88" * 8, (b"tRNS", b"\0\3")), "grey with one transparent value", 255, 136),
        (png(1, 0, b"\x0f" * 8, (b"tRNS", b"\0\0")), "one bit with one transparent value", 255, 255),
        (png(1, 0, b"\xf0" * 8, (b"tRNS", b"\0\1")), "one bit with one transparent value", 255, 0),
        (
            png(8, 3, (bytes(4) + b"\1" * 4) * 8, (b"PLTE", b"\0\0\0\7\7\7"), (b"tRNS", b"\0\xff")),
            "palette",
            255,
            7,
        ),
    ],
)
def test_a_transparent_colour_is_laid_on_white_and_said(tmp_path, content, kind, left, right):
    (folder(tmp_path / "pets") / "train/dog/1.png").write_bytes(content)
    lines, (train, _) = said_of(tmp_path / "pets")
    assert lines == [
        f"{tmp_path / 'pets'}: 1 {kind} of 12 images are read as RGB, transparent pixels on white"
    ]
    assert train.pixels[4][:, :, :4].unique().tolist() == [left]
    assert train.pixels[4][:, :, 4:].unique().tolist() == [right]


def test_grey_with_a_transparent_value_stays_grey(tmp_path):
    folder(tmp_path / "pets", mode="L")
    picture(tmp_path / "pets/train/dog/1.png", mode="L", value=9, transparency=9)
    _, (train, _) = said_of(tmp_path / "pets")
    assert train.channels == 1
    assert train.pixels[4].unique().tolist() == [255]


def test_a_png_with_much_text_is_read_and_one_with_too_much_is_named(tmp_path, monkeypatch):
    pets, text = folder(tmp_path / "pets"), PngImagePlugin.PngInfo()
    text.add_itxt("XML:com.adobe.xmp", "x" * 2**21, zip=True)
    picture(pets / "train/dog/1.png", value=31, pnginfo=text)
    train, _ = data.images(pets)
    assert train.pixels[4].unique().tolist() == [31]
    assert PngImagePlugin.MAX_TEXT_CHUNK == 2**20  # Pillow's limit is what it was
    monkeypatch.setattr(PngImagePlugin, "MAX_TEXT_MEMORY", 2**20)
    refused(pets, "dog/1.png is not a readable image .*; replace or remove it")


def frames(kind: str, **settings) -> bytes:
    stream = io.BytesIO()
    pictures = [Image.new("RGB", (8, 8), (value, 0, 0)) for value in (10, 200, 90)]
    pictures[0].save(stream, kind, save_all=True, append_images=pictures[1:], **settings)
    return stream.getvalue()


@each_case("kind", ["TIFF", "WEBP", "GIF", "PNG"])
def test_pages_and_frames_are_refused(tmp_path, kind):
    (folder(tmp_path / "pets") / "train/dog/1.tif").write_bytes(frames(kind))
    refused(tmp_path / "pets", "dog/1.tif must hold one image, got 3 pages or frames; store each")


def test_a_photograph_with_a_preview_is_read(tmp_path):
    (folder(tmp_path / "pets", suffix=".jpg") / "train/dog/1.jpg").write_bytes(frames("MPO", quality=100))
    train, _ = data.images(tmp_path / "pets")
    assert abs(int(train.pixels[4, 0].double().mean()) - 10) <= 2  # that of the first picture


@each_case("error", [ValueError("odd"), KeyError("odd"), RuntimeError("odd"), MemoryError()])
def test_every_error_of_pillow_names_the_file(tmp_path, monkeypatch, error):
    def broken(*_):
        raise error

    monkeypatch.setattr(Image.Image, "getexif", broken)
    refused(folder(tmp_path / "pets"), r"cat/0.png is not a readable image \(.*(odd|MemoryError)")


def test_images_are_turned_upright_and_the_middle_is_scaled(tmp_path):
    """A photograph of 8 x 4 that EXIF turns by a quarter: its middle half is what is kept."""
    pets, exif = folder(tmp_path / "pets", size=(4, 8)), Image.Exif()
    exif[0x0112] = 6  # to be turned to the right
    pixels = np.zeros((4, 8, 3), np.uint8)
    # rows from above, the right column of the upright image first
    pixels[:, 2:6] = np.arange(1, 5)[:, None, None] * 50
    Image.fromarray(pixels).save(pets / "train/cat/0.png", exif=exif)
    train, _ = data.images(pets, size=4)
    assert train.pixels[0, 0].tolist() == [[200, 150, 100, 50]] * 4


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp"])
def test_a_file_cut_short(tmp_path, suffix):
    file = picture(
        folder(tmp_path / "pets", suffix=suffix, size=(32, 32)) / f"train/dog/1{suffix}", size=(32, 32)
    )
    file.write_bytes(file.read_bytes()[:-40])
    refused(tmp_path / "pets", f"dog/1{suffix} is not a readable image .*; replace or remove it")


@pytest.mark.parametrize("content", [b"hello", b"", b"\x89PNG\r\n\x1a\n" + bytes(50)])
def test_a_file_that_is_none_whatever_its_ending(tmp_path, content):
    (folder(tmp_path / "pets") / "train/dog/1.png").write_bytes(content)
    refused(tmp_path / "pets", "dog/1.png is not a readable image")


def test_an_image_that_would_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    refused(folder(tmp_path / "pets"), "0.png is not a readable image .*decompression bomb")


def test_a_file_without_rights(tmp_path, monkeypatch):
    folder(tmp_path / "pets")

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Image, "open", forbidden)
    refused(tmp_path / "pets", r"0.png cannot be read \(Permission denied\); check its permissions")
    monkeypatch.setattr(os, "scandir", forbidden)
    refused(tmp_path / "pets", r"pets.* cannot be read \(Permission denied\)")


def test_a_link_that_leads_nowhere(tmp_path):
    (folder(tmp_path / "pets") / "train/cat/9.png").symlink_to(tmp_path / "gone.png")
    refused(tmp_path / "pets", "cat/9.png cannot be read .*; replace or remove it")


def test_more_than_the_memory_holds(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(np, "empty", full)
    refused(
        folder(tmp_path / "pets"), r"must fit into memory, got 12 of 3 x 8 x 8 bytes; pass a smaller size="
    )


def test_folders_that_hold_no_classes(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    refused(empty, "empty must hold a folder of images for each of at least two classes, got none")
    refused(folder(tmp_path / "one", classes=("cat",)), "at least two classes, got only 'cat'")
    (folder(tmp_path / "pets") / "train/mouse").mkdir()
    refused(tmp_path / "pets", "train/mouse must hold images of its class, got none; fill or remove it")


def test_classes_that_are_not_trained(tmp_path):
    picture(folder(tmp_path / "pets") / "test/mouse/0.png")
    refused(
        tmp_path / "pets", "test/mouse has no training images, the classes are cat, dog; rename or remove it"
    )


def test_files_that_are_not_images_are_refused(tmp_path):
    (folder(tmp_path / "pets") / "train/cat/notes.txt").write_text("x")
    refused(
        tmp_path / "pets", r"train/cat must hold images only \(.*\), got the file 'notes.txt'; move it away"
    )
    picture(folder(tmp_path / "deep") / "train/cat/more/0.png")
    refused(tmp_path / "deep", "got the folder 'more'; move it away")


def test_a_folder_loads_as_tokens(tmp_path):
    tokens = data.load(folder(tmp_path / "pets"))
    assert tokens.tokens.shape == (6, 16, 12)
    assert tokens.name == "pets"
    assert tokens.classes == 2
    assert image_tokens(tmp_path / "pets", size=4).images.shape == (6, 3, 4, 4)
