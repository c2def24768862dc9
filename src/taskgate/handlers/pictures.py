"""What a file is by its first bytes, and how many pixels an image says it has.

Formats: PNG (W3C, 11.2.2), JPEG (ITU T.81, B.2.2), GIF (89a, 18-20), WebP (RFC 9649), ISO media (ISO 14496-12, 4.3),
Matroska and WebM (RFC 8794, 11.2.1).
"""

from __future__ import annotations

from struct import error as BadStruct
from struct import unpack_from

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
VIDEOS = frozenset({"video/mp4", "video/webm", "video/quicktime"})

SNIFFED_BYTES = 64
"""So many first bytes tell the type."""

_NO_VIDEO = (b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"avif", b"avis", b"crx ", b"M4A ", b"M4B ")
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def sniff(content: bytes | bytearray) -> str | None:
    """The media type by the first bytes, one of IMAGES or VIDEOS, else None."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if content.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content.startswith(b"\x1a\x45\xdf\xa3"):
        return "video/webm" if b"\x42\x82\x84webm" in content[:SNIFFED_BYTES] else None
    if content[4:8] == b"ftyp":
        brand = bytes(content[8:12])
        return "video/quicktime" if brand == b"qt  " else None if brand in _NO_VIDEO or len(brand) < 4 else "video/mp4"
    if content[4:8] in (b"moov", b"mdat", b"wide"):  # QuickTime before it had ftyp
        return "video/quicktime"
    return None


def image_size(content: bytes | bytearray, kind: str) -> tuple[int, int] | None:
    """Width and height that an image's headers name; None where they cannot be read."""
    try:
        size = _READERS[kind](content)
    except (IndexError, BadStruct):
        return None
    return size if size is not None and size[0] > 0 and size[1] > 0 else None


def _png(content: bytes | bytearray) -> tuple[int, int] | None:
    return unpack_from(">II", content, 16) if content[12:16] == b"IHDR" else None


def _jpeg(content: bytes | bytearray) -> tuple[int, int] | None:
    at = 2
    while content[at] == 0xFF:
        marker = content[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in _FRAMES:
            height, width = unpack_from(">HH", content, at + 5)
            return width, height
        elif marker in (0xD9, 0xDA):  # the end or a scan before any frame
            return None
        else:
            at += 2 + max(2, unpack_from(">H", content, at + 2)[0])
    return None


def _gif(content: bytes | bytearray) -> tuple[int, int]:
    """The largest of the screen and its frames: a frame may be larger than the screen."""
    largest: tuple[int, int] = unpack_from("<HH", content, 6)
    at = 13 + _color_table(content[10])
    while at < len(content) and content[at] in (0x21, 0x2C):
        if content[at] == 0x2C:
            if at + 10 > len(content):
                break
            frame = unpack_from("<HH", content, at + 5)
            largest = max(largest, (frame[0], frame[1]), key=lambda size: size[0] * size[1])
            at += 11 + _color_table(content[at + 9])
        else:
            at += 2
        while at < len(content) and content[at]:
            at += 1 + content[at]
        at += 1
    return largest


def _color_table(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def _webp(content: bytes | bytearray) -> tuple[int, int] | None:
    kind = bytes(content[12:16])
    if kind == b"VP8X":
        low, mid, high = unpack_from("<HHH", content, 24)  # two numbers of 24 bits, less one
        return 1 + (low | (mid & 0xFF) << 16), 1 + (mid >> 8 | high << 8)
    if kind == b"VP8L" and content[20] == 0x2F:
        (bits,) = unpack_from("<I", content, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and content[23:26] == b"\x9d\x01\x2a":
        width, height = unpack_from("<HH", content, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None


_READERS = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp}
