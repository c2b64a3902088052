"""The film of the sample site: a lit train crosses the viaduct at night, twelve seconds without sound."""

import subprocess

import numpy as np
from PIL import Image

from . import places
from .canvas import Canvas

FRAMES, RATE, SIZE = 240, 20, (960, 600)


def write_film(file, sky, sun):
    """Draws the frames and has ffmpeg encode them; needs the package imageio-ffmpeg."""
    import imageio_ffmpeg

    valley = places.viaduct(11, sky, sun, "#34507a", "#0c1a33", "#5f7ba6", "#4a4f66", True, 700, with_train=False).light
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24",
               "-s", f"{SIZE[0]}x{SIZE[1]}", "-r", str(RATE), "-i", "-", "-c:v", "libx264", "-preset", "veryslow", "-crf", "27",
               "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-bitexact", "-threads", "1", str(file)]
    encoder = subprocess.Popen(command, stdin=subprocess.PIPE)
    for k in range(FRAMES):
        c = Canvas(0)
        c.light = valley.copy()
        places.train(c, -1300 + 3100 * k / FRAMES, 542, True)
        image = Image.fromarray((np.clip(c.light, 0, 1) * 255).astype(np.uint8), "RGB").resize(SIZE, Image.LANCZOS)
        encoder.stdin.write(image.tobytes())
    encoder.stdin.close()
    if encoder.wait() != 0:
        raise SystemExit("cannot encode the film")
