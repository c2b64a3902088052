"""Landscapes: mountains, seas, forests, deserts, fields and night skies."""

import numpy as np

from .canvas import Canvas, H, W, cloud, mix, rgb, smooth, wave


def sky(c, stops, sun=None, stars=0, star_floor=600):
    """Fills the sky; `sun` is (x, y, radius, color, glow color, glow strength)."""
    c.fill(*stops)
    if stars:
        c.stars(stars, star_floor)
    if sun:
        x, y, r, color, halo, strength = sun
        c.glow(x, y, r * 7, halo, strength * 0.55, 1.6)
        c.glow(x, y, r * 2.2, halo, strength * 0.6)
        c.disc(x, y, r, color, soft=2.5)


def pines(c, line, color, density=0.5, size=(26, 70), seed_shift=0):
    """Plants conifers along a line of heights."""
    shapes = []
    x = -20.0
    while x < W + 20:
        h = c.rng.uniform(*size)
        if c.rng.random() < density:
            base = line[int(np.clip(x, 0, W - 1))] + 6
            w = h * c.rng.uniform(0.17, 0.25)
            points = [(x, base - h)]
            tiers = 5
            for k in range(1, tiers + 1):
                y = base - h + h * k / tiers
                points += [(x + w * k / tiers, y), (x + w * k / tiers * 0.55, y - h * 0.03)]
            left = [(2 * x - px, py) for px, py in reversed(points[1:])]
            shapes.append(points + left)
        x += h * c.rng.uniform(0.18, 0.5)
    c.polygons(shapes, color)


def ridge(c, base, height, period, top, bottom, rough=0.48, octaves=6, texture=0.05, sharp=False):
    """Draws one mountain ridge, lighter towards its foot; returns its line of heights."""
    n = wave(c.rng, W, period, octaves, rough)
    if sharp:
        n = (1 - np.abs(n) * 1.7) * 0.9
    line = base - height * n
    area = c.gradient((0, top), (1, bottom), start=float(line.min()), end=float(base + height * 1.1))
    if texture:
        area = area * (1 - texture + 2 * texture * cloud(c.rng, 24, 10, 3)[..., None])
    c.blend(c.below(line), area)
    return line


def mountains(seed, stops, sun, far, near, mist, layers=6, stars=0, lake=False, trees=True, sharp=True, snow=None, first=430):
    """Layered ridges that fade into haze, as a view over many valleys."""
    c = Canvas(seed)
    sky(c, stops, sun, stars)
    c.clouds(60, 420, mix(stops[-1][1], "#ffffff", 0.35), 0.5, 0.42)
    shore = 760 if lake else H + 140
    line = None
    for k in range(layers):
        t = k / (layers - 1)
        base = first + (shore - first - (60 if lake else 100)) * t**1.15
        top = mix(far, near, t**1.1)
        line = ridge(c, base, 190 - 110 * t, 520 - 260 * t, top, mix(top, mist, 0.62 - 0.4 * t), 0.46 + 0.05 * t, 6, 0.03 + 0.05 * t, sharp and k < 3)
        if snow and k < 2:
            cap = smooth((line[None, :] + 60 + 60 * cloud(c.rng, 30, 20, 3) - c.y) / 26) * c.below(line)
            c.blend(cap, snow, 0.85)
        if trees and k >= layers - 2:
            pines(c, line, mix(near, "#000000", 0.25 * (k - layers + 2)), 0.8, (22 + 30 * (k - layers + 2), 46 + 70 * (k - layers + 2)))
        if k < layers - 1:
            c.haze(base - 120, base + 90, mist, 0.34)
    if lake:
        water(c, 760, mix(stops[-1][1], near, 0.25), near, sun)
    return c


def water(c, horizon, top, bottom, sun=None, ripple=1.0, mirror=0.55):
    """Draws water below a height: what stands above it mirrored, ripples, and the sun's road."""
    depth = H - horizon
    rows = np.clip(2 * horizon - np.arange(horizon, H), 0, horizon - 1).astype(int)
    reflection = c.light[rows].copy()
    shift = (wave(c.rng, depth, 14, 3) * np.linspace(2, 22, depth) * ripple).astype(int)
    for k in range(depth):
        reflection[k] = np.roll(reflection[k], shift[k], axis=0)
    base = c.gradient((0, top), (1, bottom), start=horizon, end=H)[horizon:]
    c.light[horizon:] = reflection * mirror + base * (1 - mirror)
    n = cloud(c.rng, 5, 90, 3, 0.6)[horizon:]
    t = np.linspace(0.25, 1, depth)[:, None]
    c.light[horizon:] *= (1 + (n - 0.5) * 0.32 * t * ripple)[..., None]
    if sun:
        x, _, r, color, _, strength = sun
        width = r * (0.8 + np.linspace(0, 3.2, depth))[:, None]
        road = np.exp(-(((c.x[horizon:] - x) / width) ** 2)) * smooth((n - 0.42) * 7) * np.linspace(1, 0.35, depth)[:, None]
        c.light[horizon:] += (road * 0.75 * strength)[..., None] * (rgb(color) - c.light[horizon:])


def sea(seed, stops, sun, top, bottom, horizon=600, islands=(), stars=0, extra=None, cloud_color=None):
    """A sea under a wide sky; islands are (x, width, height, color)."""
    c = Canvas(seed)
    sky(c, stops, sun, stars, horizon)
    c.clouds(80, horizon - 40, cloud_color or mix(stops[0][1], stops[-1][1], 0.5), 0.55, 0.45, (2, 12))
    for x, width, height, color in islands:
        t = (np.arange(W) - x) / width
        hill = np.clip(1 - t * t, 0, 1) ** 0.8 * height * (1 + 0.35 * wave(c.rng, W, 120, 5))
        c.blend(c.below(horizon - hill) * (np.abs(t) < 1)[None, :] * (c.y < horizon + 1), c.gradient((0, mix(color, stops[-1][1], 0.1)), (1, mix(color, stops[-1][1], 0.45)), start=horizon - height, end=horizon))
    if extra:
        extra(c, horizon)
    water(c, horizon, top, bottom, sun)
    c.haze(horizon - 40, horizon + 4, stops[-1][1], 0.35)
    return c


def forest(seed, light, deep, glow=None, trunks=46, snow=False):
    """Trunks that fade into fog, near ones dark."""
    c = Canvas(seed)
    c.fill((0, mix(light, "#ffffff", 0.25)), (0.6, light), (1, mix(light, deep, 0.5)))
    if glow:
        c.glow(glow[0], glow[1], 520, glow[2], 0.9, 1.7)
    for k in range(6):
        t = k / 5
        color = mix(mix(light, deep, 0.18), deep, t**1.2)
        ground = 640 + 250 * t + 26 * wave(c.rng, W, 320, 4)
        pines(c, np.full(W, ground.mean() - 10, dtype=np.float32) + ground - ground.mean(), mix(color, light, 0.2), 0.75, (150 + 180 * t, 330 + 330 * t))
        shapes = []
        for _ in range(int(trunks / 6 * (1.3 - 0.7 * t))):
            x = c.rng.uniform(0, W)
            w = (4 + 30 * t**1.6) * c.rng.uniform(0.7, 1.2)
            lean = c.rng.uniform(-14, 14)
            g = ground[int(np.clip(x, 0, W - 1))] + 30
            shapes.append([(x - w / 2, g), (x - w * 0.3 + lean, -10), (x + w * 0.3 + lean, -10), (x + w / 2, g)])
        c.polygons(shapes, color)
        c.blend(c.below(ground), c.gradient((0, mix(color, "#ffffff", 0.75) if snow else color), (1, mix(color, light, 0.35)), start=float(ground.min()), end=float(ground.max() + 240)))
        fog = smooth((c.y - 250) / 500) * (0.5 + 0.8 * cloud(c.rng, 4, 5, 4))
        c.blend(np.clip(fog, 0, 1), light, 0.42 * (1 - t) + 0.05)
    if glow:
        angle = np.arctan2(c.y - glow[1], c.x - glow[0])
        beam = wave(c.rng, 2000, 60, 4)
        rays = np.clip(beam[((angle + np.pi) / (2 * np.pi) * 1999).astype(int)] * 1.6, 0, 1) * np.exp(-np.hypot(c.x - glow[0], c.y - glow[1]) / 620)
        c.blend(rays, glow[2], 0.42)
    return c


def dunes(seed, stops, sun, light, dark, layers=6, caravan=False):
    """Sand dunes, each with a lit and a shaded side."""
    c = Canvas(seed)
    sky(c, stops, sun)
    for k in range(layers):
        t = k / (layers - 1)
        base = 500 + 400 * t**1.15
        line = base - (46 + 110 * t) * wave(c.rng, W, 620 - 60 * t, 2, 0.2)
        lit, dim = mix(light, stops[-1][1], 0.55 * (1 - t)), mix(dark, stops[-1][1], 0.5 * (1 - t))
        c.blend(c.below(line), c.gradient((0, mix(lit, "#ffffff", 0.1)), (1, mix(lit, dim, 0.5)), start=float(line.min()), end=float(line.max() + 300)))
        c.polygons(lee_sides(line, 130 + 190 * t), dim, 0.9)
        ripples = np.sin((c.y - line[None, :] * 0.7 + 70 * cloud(c.rng, 5, 3, 3)) / (2.6 + 4.4 * t))
        c.shade(c.below(line) * (0.5 + 0.5 * ripples), 1 - 0.045 * t)
        if caravan and k == 2:
            for j in range(6):
                x = int(500 + j * 70)
                camel(c, x, line[x] + 2, 0.85, mix(dark, "#1a1010", 0.6))
    return c


def lee_sides(line, depth):
    """Returns the shaded sides of a dune: from each crest down to the next hollow and back."""
    turns = [0, *(np.flatnonzero(np.diff(np.sign(np.diff(line)))) + 1), W - 1]
    shapes = []
    for a, b in zip(turns, turns[1:]):
        if line[b] - line[a] > 12:
            xs = np.arange(a, b + 1)
            u = np.linspace(1, 0, 40)
            back = a + (b - a) * (0.12 * np.sin(u * np.pi) + 0.5 * u**1.6)
            down = line[a] + (line[b] - line[a] + depth) * u**0.9
            shapes.append(list(zip(xs, line[a : b + 1])) + list(zip(back, down)))
    return shapes


def camel(c, x, y, s, color):
    """Draws a camel with its load, seen from afar, standing on (x, y)."""
    def p(points):
        return [(x + px * s, y + py * s) for px, py in points]
    body = p([(-18, -22), (-12, -30), (-4, -27), (2, -36), (9, -27), (16, -26), (22, -36), (26, -44), (33, -43), (34, -39), (28, -38), (25, -28), (19, -18), (-16, -17)])
    legs = [p([(a, -19), (a + 2, -19), (a + 1.5, 0), (a - 0.5, 0)]) for a in (-15, -11, 13, 17)]
    c.polygons([body, *legs], color)


def aurora(seed):
    """Green light over snow and a hut with a lit window."""
    c = Canvas(seed)
    sky(c, [(0, "#050b1c"), (0.5, "#0d2238"), (0.75, "#1f4a55")], stars=900, star_floor=700)
    for k, color in enumerate(["#3ff0a6", "#62f5c9", "#8f7bf0"]):
        foot = 440 - 90 * k + 130 * wave(c.rng, W, 620, 4, 0.42)
        above = foot[None, :] - c.y
        curtain = np.where(above > 0, np.exp(-above / (170 + 50 * k)), np.exp(above / 26))
        streak = 0.45 + 0.55 * np.clip(wave(c.rng, W, 46, 4, 0.6) + 0.45, 0, 1)
        c.light += (curtain * streak[None, :] * (0.62 - 0.14 * k))[..., None] * rgb(color)
    c.light = np.clip(c.light, 0, 1)
    ridge(c, 700, 120, 420, "#16323f", "#2b5361", sharp=True)
    ground = 780 + 24 * wave(c.rng, W, 500, 4)
    pines(c, ground - 4, "#081720", 0.8, (60, 170))
    c.blend(c.below(ground), c.gradient((0, "#9cc9cf"), (0.4, "#5f93a6"), (1, "#234357"), start=760, end=H))
    hut(c, 1080, ground[1080] + 26, 1.5)
    return c


def hut(c, x, y, s):
    """Draws a wooden hut with snow on its roof and light in its windows."""
    c.boxes([(x - 60 * s, y - 62 * s, x + 60 * s, y)], "#1b130f")
    c.polygons([[(x - 78 * s, y - 58 * s), (x, y - 118 * s), (x + 78 * s, y - 58 * s)]], "#120c0a")
    c.polygons([[(x - 82 * s, y - 58 * s), (x, y - 124 * s), (x + 82 * s, y - 58 * s), (x + 72 * s, y - 58 * s), (x, y - 110 * s), (x - 72 * s, y - 58 * s)]], "#dcebf0")
    c.boxes([(x + 30 * s, y - 130 * s, x + 44 * s, y - 84 * s)], "#1b130f")
    for a in (-34, 20):
        c.boxes([(x + a * s, y - 42 * s, x + (a + 20) * s, y - 18 * s)], "#ffc861")
        c.glow(x + (a + 10) * s, y - 30 * s, 60 * s, "#ffb347", 0.75)


def terraces(seed, stops, sun, colors, edge):
    """Terraced fields that climb a slope in curved steps."""
    c = Canvas(seed)
    sky(c, stops, sun)
    c.clouds(40, 360, "#ffffff", 0.5, 0.45)
    ridge(c, 380, 150, 480, mix(colors[0], stops[-1][1], 0.62), stops[-1][1], sharp=True)
    ridge(c, 440, 100, 380, mix(colors[0], stops[-1][1], 0.4), mix(colors[0], stops[-1][1], 0.7))
    bend = 90 * wave(c.rng, W, 620, 3, 0.4)
    steps = 17
    for k in range(steps):
        t = k / (steps - 1)
        line = 470 + 560 * t**1.35 + bend * (0.4 + t) + 16 * wave(c.rng, W, 240, 4)
        color = mix(colors[k % len(colors)], stops[-1][1], 0.34 * (1 - t))
        flooded = k % 4 == 2
        fill = mix(stops[-1][1], stops[0][1], 0.4) if flooded else color
        c.blend(c.below(line), c.gradient((0, mix(fill, "#ffffff", 0.14)), (1, fill), start=float(line.min()), end=float(line.max() + 60)))
        wall = c.below(line) * np.clip((line[None, :] + 4 + 12 * t - c.y) / 2, 0, 1)
        c.blend(wall, mix(edge, stops[-1][1], 0.3 * (1 - t)), 0.85)
        if not flooded:
            rows = 0.5 + 0.5 * np.sin(c.x / (3 + 5 * t) + 4 * cloud(c.rng, 4, 4, 2))
            c.shade(c.below(line) * rows * (c.y > line[None, :] + 8), 0.965)
    c.haze(330, 470, stops[-1][1], 0.4)
    return c


def vineyard(seed, stops, sun):
    """Slopes striped with rows of vines that run towards a river bend."""
    c = Canvas(seed)
    sky(c, stops, sun)
    c.clouds(40, 380, "#fff1da", 0.5, 0.45)
    ridge(c, 430, 110, 520, "#a98a86", "#ecc9a0")
    slopes = ((470, 90, 640, 0.35, 20, "#b98d4a", "#7a5a30"), (560, 120, 820, -0.5, 30, "#c77f35", "#7d4322"), (700, 130, 900, 0.62, 46, "#b3502a", "#6a2a1c"), (850, 90, 1000, -0.3, 70, "#8f8a3a", "#4f4c20"))
    for k, (base, height, period, lean, gap, vine, soil) in enumerate(slopes):
        t = k / 3
        line = base - height * wave(c.rng, W, period, 3, 0.3)
        haze = 0.42 * (1 - t)
        c.blend(c.below(line), c.gradient((0, mix(soil, "#f3d3a2", haze)), (1, mix(soil, "#000000", 0.12)), start=float(line.min()), end=float(line.max() + 330)))
        drop = c.y - line[None, :]
        fan = (c.x - 800 + lean * drop * 2.2) / (1 + np.clip(drop, 0, None) / 420)
        rows = 0.5 + 0.5 * np.sin(fan / gap * 2 * np.pi)
        tufts = 0.6 + 0.6 * cloud(c.rng, 70, 50, 2)
        c.blend(c.below(line) * smooth((rows - 0.42) * 4) * np.clip(tufts, 0, 1), mix(vine, "#f3d3a2", haze), 0.95)
        c.shade(c.below(line) * smooth((0.2 - rows) * 5), 0.82)
        c.haze(base + 20, base + 150, "#f3d3a2", 0.16 * (1 - t))
        if k == 0:
            river = 560 + 10 * wave(c.rng, W, 300, 2)
            c.blend(np.exp(-(((c.y - river[None, :]) / 15) ** 2)) * (c.x > 300), "#f9e2b8", 0.9)
    x = 1190
    y = 700
    c.boxes([(x - 70, y - 56, x + 70, y)], "#f2e2c4")
    c.polygons([[(x - 84, y - 54), (x - 52, y - 96), (x + 52, y - 96), (x + 84, y - 54)]], "#a3482c")
    c.boxes([(x - 46 + 34 * j, y - 40, x - 32 + 34 * j, y - 16) for j in range(3)], "#5a3a2c")
    for px, h in ((1080, 150), (1104, 178), (1300, 160)):
        c.ovals([(px - 13, y - h, px + 13, y + 6)], "#3f4a2a")
    return c


def passing(seed, stops, sun, way=0.0):
    """What a train window shows after `way` pixels: hills pass slowly, poles rush by."""
    c = Canvas(seed)
    sky(c, stops, sun)
    c.clouds(60, 430, "#fff3e0", 0.5, 0.46, (2, 10))
    layers = ((480, 120, 560, 0.04, "#7d8fb0", "#e8c9b0"), (560, 90, 460, 0.1, "#5d7391", "#c9a99a"), (650, 60, 700, 0.24, "#5a6b52", "#b59a6a"),
              (740, 40, 900, 0.5, "#7a7a3c", "#c79a4a"), (850, 26, 800, 1.0, "#3f4a2c", "#20281c"))
    for k, (base, height, period, speed, top, bottom) in enumerate(layers):
        start = int(way * speed)
        line = (base - height * wave(np.random.default_rng(seed + k), W + 4000, period, 5, 0.42))[start : start + W]
        c.blend(c.below(line), c.gradient((0, top), (1, bottom), start=base - height, end=base + 160))
        if k in (2, 3):
            grove(c, np.random.default_rng(seed + 40 + k), line, start, 16 + 18 * (k - 2), mix(top, "#1d2a20", 0.55))
    gap = 620
    for x in np.arange(-(way * 1.9) % gap - gap, W + gap, gap):
        c.boxes([(x - 7, 120, x + 7, H), (x - 70, 190, x + 70, 200)], "#171a1c")
        for j in (-60, 60):
            c.lines([[(x + j + gap * q, 186 + 240 * q * (1 - q)) for q in np.linspace(0, 1, 16)]], 2, "#171a1c", 0.8)
    return c


def grove(c, rng, line, start, size, color):
    """Strews round trees along a line that has moved on by `start` pixels."""
    crowns = []
    for x in np.sort(rng.uniform(0, W + 4000, 90)):
        r, at = size * rng.uniform(0.6, 1.3), int(x - start)
        if -40 < at < W + 40:
            y = line[int(np.clip(at, 0, W - 1))]
            crowns += [(at - r, y - r * 1.7, at + r, y + r * 0.3), (at - r * 0.12, y - r, at + r * 0.12, y + r * 0.5)]
    c.ovals(crowns, color)


def waterfall(seed):
    """A fall between mossy cliffs."""
    c = Canvas(seed)
    c.fill((0, "#dcebe6"), (0.4, "#9cc4bb"), (1, "#24504e"))
    for k in range(5):
        t = k / 4
        gap = 250 - 120 * t + 46 * wave(c.rng, H, 260, 5)
        color = mix("#7fae9f", "#0f2b2a", t**0.8)
        area = color * (0.8 + 0.4 * cloud(c.rng, 14, 26, 4)[..., None])
        middle = 800 + 30 * wave(c.rng, H, 400, 3)
        rock = np.clip((np.abs(c.x - middle[:, None]) - (gap + 330 * (t**1.6))[:, None]) / 3, 0, 1)
        c.blend(rock, area)
        c.blend(smooth(c.y / H) * 0.5 * (1 - t), "#e7f3ef", 0.5)
    flow = np.clip(1 - np.abs(c.x - 800 - 14 * wave(c.rng, H, 300, 3)[:, None]) / (95 + 60 * smooth((c.y - 400) / 500)), 0, 1)
    streak = cloud(c.rng, 120, 3, 3)
    c.blend(smooth(flow * 2) * (0.45 + 0.75 * streak).clip(0, 1) * (c.y < 860), "#f7fcfb", 0.93)
    spray = np.exp(-(((c.x - 800) / 300) ** 2) - (((c.y - 850) / 90) ** 2)) * (0.5 + cloud(c.rng, 8, 8, 4))
    c.blend(np.clip(spray, 0, 1), "#f2faf8", 0.9)
    pool = c.below(870 + 10 * wave(c.rng, W, 200, 3))
    c.blend(pool * 0.7, c.gradient((0, "#8fbdb4"), (1, "#143c3c"), start=860, end=H))
    c.blend(np.clip(spray, 0, 1) * pool, "#f2faf8", 0.5)
    return c


def night_camp(seed):
    """A lit tent under the Milky Way."""
    c = Canvas(seed)
    sky(c, [(0, "#050818"), (0.55, "#12224a"), (0.8, "#5a4a78"), (1, "#c88a6c")], stars=1500, star_floor=760)
    d = np.abs((c.x - 1150) * 0.78 + (c.y - 150) * 0.62) / 190
    milky = np.exp(-(d**2)) * cloud(c.rng, 10, 8, 5, 0.65) ** 1.6
    c.light += milky[..., None] * rgb("#9fb0e8") * 0.75
    c.light = np.clip(c.light, 0, 1)
    c.stars(500, 640)
    ridge(c, 700, 140, 420, "#241f45", "#4a3d62", sharp=True)
    ridge(c, 800, 70, 300, "#15142e", "#1d1a36")
    ground = 850 + 18 * wave(c.rng, W, 420, 4)
    c.blend(c.below(ground), c.gradient((0, "#0c0d1e"), (1, "#05060f"), start=840, end=H))
    pines(c, ground, "#05060f", 0.35, (70, 190))
    x, y = 560, 892
    c.glow(x, y - 40, 230, "#ff9a3c", 0.65)
    c.polygons([[(x - 150, y), (x - 16, y - 128), (x + 190, y)]], "#f2a23f")
    c.polygons([[(x - 16, y - 128), (x + 190, y), (x + 60, y)]], "#d97d28")
    c.polygons([[(x - 60, y), (x - 16, y - 104), (x + 22, y)]], "#ffe1a0")
    c.lines([[(x - 16, y - 128), (x - 150, y), (x - 210, y + 10)], [(x - 16, y - 128), (x + 190, y), (x + 250, y + 8)]], 2, "#2b1a10")
    return c
