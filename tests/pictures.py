"""Screenshots made small: PNG files of at most 256 colours, the same from the same pixels."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path

import numpy as np

from tests.browser import Page

_PIXELS = """
new Promise((done) => {
  const image = new Image();
  image.onload = () => {
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.width, image.height];
    const drawing = canvas.getContext("2d");
    drawing.drawImage(image, 0, 0);
    const bytes = drawing.getImageData(0, 0, image.width, image.height).data;
    const parts = [];
    for (let i = 0; i < bytes.length; i += 32768) parts.push(String.fromCharCode(...bytes.subarray(i, i + 32768)));
    done([image.width, image.height, btoa(parts.join(""))]);
  };
  image.src = "data:image/png;base64,%s";
})
"""


def take_picture(page: Page, file: Path) -> None:
    """Write what a page shows as a small PNG."""
    shot = page.send("Page.captureScreenshot", format="png")["data"]
    width, height, pixels = page.js(_PIXELS % shot)
    rgba = np.frombuffer(base64.b64decode(pixels), np.uint8).reshape(height, width, 4)
    file.write_bytes(palette_png(rgba[:, :, :3]))


def palette_png(rgb: np.ndarray) -> bytes:
    """A PNG of 256 colours, the most frequent and the most different; others become the nearest of these."""
    height, width, _ = rgb.shape
    codes = rgb.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, place, counts = np.unique(codes, return_inverse=True, return_counts=True)
    every = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], axis=1).astype(np.int32)
    kept = np.argsort(-counts, kind="stable")[:192].tolist()
    nearest = np.min([((every - every[k]) ** 2).sum(axis=1) for k in kept], axis=0)
    while len(kept) < min(256, len(every)):
        kept.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, ((every - every[kept[-1]]) ** 2).sum(axis=1))
    distance = ((every[:, None, :] - every[kept][None, :, :]) ** 2).sum(axis=2)
    indexes = distance.argmin(axis=1).astype(np.uint8)[place.reshape(height, width)]
    rows = np.concatenate([np.zeros((height, 1), np.uint8), indexes], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = [
        (b"IHDR", header),
        (b"PLTE", every[kept].astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
