"""A canvas of light: gradients, noise, glows and anti-aliased shapes.

In: a seed. Every drawing is a function of its seed and its arguments only, so the same program
draws the same picture again.
Out: an array of 1000 x 1600 x 3 floats between 0 and 1, finished with grain by `develop`.
"""

import numpy as np
from PIL import Image, ImageDraw

W, H = 1600, 1000
SCALE = 2  # shapes are drawn larger and reduced, which smooths their edges


def rgb(color):
    """Returns the three floats of a `#rrggbb` text, or the given color itself."""
    if isinstance(color, str):
        return np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)], dtype=np.float32) / 255
    return np.asarray(color, dtype=np.float32)


def mix(a, b, t):
    """Returns the color between `a` (at 0) and `b` (at 1)."""
    return rgb(a) * (1 - t) + rgb(b) * t


def smooth(t):
    """Returns `t` cut to 0..1 and eased at both ends."""
    t = np.clip(t, 0, 1)
    return t * t * (3 - 2 * t)


def wave(rng, length, period, octaves=5, rough=0.5):
    """Returns smooth noise along a line, about -1..1: sums of octaves, each half as wide."""
    x = np.arange(length, dtype=np.float32)
    out = np.zeros(length, dtype=np.float32)
    height, total = 1.0, 0.0
    for _ in range(octaves):
        knots = rng.uniform(-1, 1, int(length / period) + 4)
        at = x / period + rng.uniform(0, 1)
        left = at.astype(int)
        t = at - left
        t = t * t * (3 - 2 * t)
        out += height * (knots[left] * (1 - t) + knots[left + 1] * t)
        total += height
        height *= rough
        period = max(period / 2, 2)
    return out / total


def cloud(rng, cells_x, cells_y, octaves=4, rough=0.55, size=(W, H)):
    """Returns smooth noise over an area, about 0..1."""
    out = np.zeros((size[1], size[0]), dtype=np.float32)
    height, total = 1.0, 0.0
    for k in range(octaves):
        grid = rng.uniform(0, 1, (cells_y * 2**k + 2, cells_x * 2**k + 2)).astype(np.float32)
        layer = Image.fromarray(grid).resize(size, Image.BICUBIC)
        out += height * np.asarray(layer)
        total += height
        height *= rough
    return np.clip(out / total, 0, 1)


class Canvas:
    """One picture while it is being drawn."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.light = np.zeros((H, W, 3), dtype=np.float32)
        self.y, self.x = np.mgrid[0:H, 0:W].astype(np.float32)

    def fill(self, *stops, horizontal=False):
        """Fills the whole canvas with a gradient; a stop is (place 0..1, color)."""
        self.light[:] = self.gradient(*stops, horizontal=horizontal)

    def gradient(self, *stops, horizontal=False, start=0, end=None):
        """Returns a gradient as an area of colors, between `start` and `end` pixels."""
        axis = self.x if horizontal else self.y
        end = end or (W if horizontal else H)
        t = np.clip((axis - start) / (end - start), 0, 1)
        places = [s[0] for s in stops]
        colors = np.array([rgb(s[1]) for s in stops])
        return np.stack([np.interp(t, places, colors[:, c]) for c in range(3)], axis=-1).astype(np.float32)

    def blend(self, mask, color, alpha=1.0):
        """Lays a color (or an area of colors) over the canvas where the mask says so."""
        m = (mask * alpha)[..., None]
        self.light = self.light * (1 - m) + rgb(color) * m

    def shade(self, mask, factor):
        """Darkens (factor below 1) or lightens the canvas where the mask says so."""
        self.light *= 1 + (factor - 1) * mask[..., None]

    def glow(self, x, y, radius, color, strength=1.0, power=2.0):
        """Adds light around a point, as a lamp in haze."""
        d = np.hypot(self.x - x, self.y - y) / radius
        g = (strength / (1 + d**power * 6))[..., None] * rgb(color)
        self.light = 1 - (1 - np.clip(self.light, 0, 1)) * (1 - np.clip(g, 0, 1))

    def disc(self, x, y, radius, color, alpha=1.0, soft=1.5):
        """Draws a filled circle; `soft` is the width of its edge."""
        d = np.hypot(self.x - x, self.y - y)
        self.blend(np.clip((radius - d) / soft + 0.5, 0, 1), color, alpha)

    def ring(self, x, y, radius, width, color, alpha=1.0, soft=1.5):
        """Draws a circle's line."""
        d = np.abs(np.hypot(self.x - x, self.y - y) - radius)
        self.blend(np.clip((width / 2 - d) / soft + 0.5, 0, 1), color, alpha)

    def mask(self, draw):
        """Returns the area that `draw(pen, scale)` paints."""
        image = Image.new("L", (W * SCALE, H * SCALE), 0)
        draw(ImageDraw.Draw(image), SCALE)
        return np.asarray(image.resize((W, H), Image.BOX), dtype=np.float32) / 255

    def polygons(self, shapes, color, alpha=1.0):
        """Draws filled polygons, all in one color."""
        def draw(pen, s):
            for points in shapes:
                pen.polygon([(px * s, py * s) for px, py in points], fill=255)
        self.blend(self.mask(draw), color, alpha)

    def boxes(self, rectangles, color, alpha=1.0):
        """Draws filled rectangles given as (left, top, right, bottom)."""
        def draw(pen, s):
            for a, b, c, d in rectangles:
                if c > a and d > b:
                    pen.rectangle([a * s, b * s, c * s - 1, d * s - 1], fill=255)
        self.blend(self.mask(draw), color, alpha)

    def ovals(self, rectangles, color, alpha=1.0):
        """Draws filled ellipses given by the rectangles around them."""
        def draw(pen, s):
            for a, b, c, d in rectangles:
                pen.ellipse([a * s, b * s, c * s, d * s], fill=255)
        self.blend(self.mask(draw), color, alpha)

    def lines(self, paths, width, color, alpha=1.0):
        """Draws lines through points."""
        def draw(pen, s):
            for points in paths:
                pen.line([(px * s, py * s) for px, py in points], fill=255, width=max(1, round(width * s)), joint="curve")
        self.blend(self.mask(draw), color, alpha)

    def below(self, line):
        """Returns the area under a line that is given as one height per column."""
        return np.clip(self.y - line[None, :] + 0.5, 0, 1)

    def stars(self, count, bottom, color="#ffffff"):
        """Strews stars of different brightness above a height."""
        xs = self.rng.uniform(0, W, count)
        ys = bottom * self.rng.uniform(0, 1, count) ** 1.3
        for x, y, size in zip(xs, ys, self.rng.pareto(3, count)):
            r = min(0.5 + size * 0.5, 2.0)
            x0, y0 = int(x), int(y)
            area = np.s_[max(y0 - 4, 0) : y0 + 5, max(x0 - 4, 0) : x0 + 5]
            d = np.hypot(self.x[area] - x, self.y[area] - y)
            a = np.clip(r - d + 0.5, 0, 1)[..., None] * min(0.35 + size, 1.0)
            self.light[area] = self.light[area] * (1 - a) + rgb(color) * a

    def haze(self, top, bottom, color, alpha):
        """Lays a band of haze that is thickest at `bottom`."""
        t = smooth((self.y - top) / (bottom - top)) * (1 - smooth((self.y - bottom) / 120))
        self.blend(t, color, alpha)

    def clouds(self, top, bottom, color, alpha=0.6, cover=0.5, cells=(3, 9)):
        """Draws streaks of cloud between two heights."""
        n = cloud(self.rng, cells[0], cells[1], 5, 0.55)
        band = smooth((self.y - top) / ((bottom - top) * 0.4)) * (1 - smooth((self.y - bottom + (bottom - top) * 0.4) / ((bottom - top) * 0.4)))
        self.blend(smooth((n - (1 - cover)) * 4) * band, color, alpha)

    def develop(self, grain=0.011, vignette=0.22):
        """Finishes the picture with grain and darker corners and returns it as an image."""
        d = np.hypot((self.x - W / 2) / (W * 0.62), (self.y - H / 2) / (H * 0.66))
        self.light *= (1 - vignette * smooth(d - 0.35))[..., None]
        fine = self.rng.normal(0, 1, (H // 2, W // 2)).astype(np.float32)
        fine = np.asarray(Image.fromarray(fine).resize((W, H), Image.BICUBIC))
        self.light += fine[..., None] * grain
        return Image.fromarray((np.clip(self.light, 0, 1) * 255 + 0.5).astype(np.uint8), "RGB")
