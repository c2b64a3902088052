"""The film of the sample site: ten seconds out of a train window at dawn, without sound."""

import subprocess

from PIL import Image

from . import nature

FRAMES, RATE, SIZE = 200, 20, (960, 600)


def write_film(file, stops, sun):
    """Draws the frames and has ffmpeg encode them; needs the package imageio-ffmpeg."""
    import imageio_ffmpeg

    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-f", "rawvideo", "-pix_fmt", "rgb24",
               "-s", f"{SIZE[0]}x{SIZE[1]}", "-r", str(RATE), "-i", "-", "-c:v", "libx264", "-preset", "veryslow", "-crf", "29",
               "-pix_fmt", "yuv420p", "-movflags", "+faststart", "-bitexact", "-threads", "1", str(file)]
    encoder = subprocess.Popen(command, stdin=subprocess.PIPE)
    for k in range(FRAMES):
        frame = nature.passing(70, stops, sun, 15.5 * k).develop(grain=0, vignette=0.12)
        encoder.stdin.write(frame.resize(SIZE, Image.LANCZOS).tobytes())
    encoder.stdin.close()
    if encoder.wait() != 0:
        raise SystemExit("cannot encode the film")
