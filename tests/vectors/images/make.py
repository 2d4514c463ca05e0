"""Makes the images of these tests, and what Pillow and torchvision make of them.

Run with Debian's python3-pil and python3-torchvision: /usr/bin/python3 tests/vectors/images/make.py
Of each image NAME there are NAME.pixels.npy, as Image.open(NAME).convert("RGB") gives it, and NAME.small.npy, which
Resize(24) and CenterCrop(17) of torchvision make of these pixels.
"""
import os

import numpy as np
from PIL import Image
from torchvision.transforms import CenterCrop, Resize

HERE = os.path.dirname(os.path.abspath(__file__))


def picture(width, height):
    """Soft colours with some edges, so that nothing is lost in a good JPEG."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    red = 127 + 100 * np.sin(x / 9) * np.cos(y / 7)
    green = 255 * x / width
    blue = 255 * y / height
    pixels = np.stack([red, green, blue], axis=-1)
    pixels[height // 4:height // 2, width // 4:width // 2] = (200, 60, 40)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def main():
    wide, tall = picture(64, 45), picture(41, 66)
    clear = wide.convert("RGBA")
    clear.putalpha(wide.convert("L"))
    turned = Image.Exif()
    turned[0x0112] = 6
    images = {
        "wide.jpg": (wide, dict(quality=92)),
        "tall.jpg": (tall, dict(quality=92, subsampling=0)),
        "progressive.jpg": (wide, dict(quality=92, progressive=True)),
        "grey.jpg": (wide.convert("L"), dict(quality=92)),
        "cmyk.jpg": (wide.convert("CMYK"), dict(quality=92)),
        "turned.jpg": (wide, dict(quality=92, exif=turned)),
        "wide.png": (wide, {}),
        "palette.png": (wide.quantize(32), {}),
        "grey.png": (wide.convert("L"), {}),
        "clear.png": (clear, {}),
    }
    for name, (image, options) in images.items():
        path = os.path.join(HERE, name)
        image.save(path, **options)
        pixels = Image.open(path).convert("RGB")
        np.save(f"{path}.pixels.npy", np.asarray(pixels))
        np.save(f"{path}.small.npy", np.asarray(CenterCrop(17)(Resize(24)(pixels))))


main()
