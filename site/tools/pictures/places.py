"""Built places: cities, harbors, villages, bridges, trains, lighthouses."""

import numpy as np

from .canvas import Canvas, H, W, cloud, mix, rgb, smooth, wave
from .nature import pines, ridge, sky, water


def towers(c, base, width, height, color, lit=None, share=0.3, seam=3):
    """Draws a row of towers up to `height`; `lit` colors a share of their windows."""
    x = -30.0
    walls, roofs, panes, dim = [], [], [], []
    while x < W + 30:
        w = c.rng.uniform(*width)
        middle = np.exp(-(((x + w / 2 - W * 0.55) / (W * 0.42)) ** 2))
        h = c.rng.uniform(0.35, 1) * height * (0.45 + 0.75 * middle)
        top = base - h
        walls.append((x, top, x + w - seam, base + 4))
        kind = c.rng.random()
        if kind < 0.16:
            roofs.append([(x, top + 1), (x + w / 2 - seam / 2, top - w * 0.7), (x + w - seam, top + 1)])
        elif kind < 0.3:
            walls.append((x + w * 0.2, top - w * 0.25, x + w * 0.75, top + 1))
        elif kind < 0.4:
            walls.append((x + w * 0.45, top - h * 0.16, x + w * 0.45 + 3, top + 1))
        if lit:
            for wy in np.arange(top + 12, base - 10, 17):
                for wx in np.arange(x + 7, x + w - 13, 13):
                    if c.rng.random() < share:
                        (panes if c.rng.random() < 0.7 else dim).append((wx, wy, wx + 6, wy + 9))
        x += w
    c.boxes(walls, color)
    c.polygons(roofs, color)
    if lit:
        c.boxes(dim, mix(lit, color, 0.5))
        c.boxes(panes, lit)


def skyline(seed, stops, sun, far, near, lit=None, horizon=720, stars=0, share=0.3):
    """A city across the water, three rows deep."""
    c = Canvas(seed)
    sky(c, stops, sun, stars, 500)
    c.clouds(80, 480, mix(stops[-1][1], "#ffffff", 0.2), 0.4, 0.42)
    for k in range(3):
        t = k / 2
        towers(c, horizon, (42 - 4 * k, 100 - 8 * k), 400 - 110 * k, mix(far, near, t), lit if k else None, share * (0.6 + 0.5 * t))
        c.haze(horizon - 220, horizon, mix(stops[-1][1], far, 0.35), 0.26 * (1 - t))
    if lit:
        c.glow(W * 0.55, horizon, 620, lit, 0.22, 1.5)
    water(c, horizon, mix(stops[-1][1], near, 0.55), mix(near, "#000000", 0.35), sun, 1.5, 0.68)
    return c


def houses(c, base, colors, roof, widths=(90, 140), heights=(210, 330), lit=None, kind="gable"):
    """Draws a row of town houses with windows, doors and gables."""
    x = -30.0
    while x < W + 30:
        w, h = c.rng.uniform(*widths), c.rng.uniform(*heights)
        color = rgb(colors[c.rng.integers(len(colors))])
        top = base - h
        c.boxes([(x, top, x + w, base)], color)
        c.boxes([(x, top, x + 5, base)], mix(color, "#000000", 0.2))
        if kind == "gable":
            step = w / 6
            c.polygons([[(x, top + 1), (x, top - step), (x + step, top - step), (x + step, top - 2.2 * step), (x + 2 * step, top - 2.2 * step), (x + 2 * step, top - 3.3 * step), (x + 4 * step, top - 3.3 * step), (x + 4 * step, top - 2.2 * step), (x + 5 * step, top - 2.2 * step), (x + 5 * step, top - step), (x + w, top - step), (x + w, top + 1)]], mix(color, roof, 0.28))
        else:
            c.polygons([[(x - 6, top + 2), (x + w * 0.14, top - h * 0.15), (x + w * 0.86, top - h * 0.15), (x + w + 6, top + 2)]], mix(roof, "#000000", c.rng.uniform(0, 0.18)))
        columns, rows = 3, max(3, int(h / 74))
        glass, frames = [], []
        for r in range(rows):
            for k in range(columns):
                wx = x + w * (0.15 + 0.26 * k)
                wy = top + 22 + r * (h - 40) / rows
                frames.append((wx - 3, wy - 3, wx + w * 0.17 + 3, wy + 43))
                glass.append((wx, wy, wx + w * 0.17, wy + 40, c.rng.random()))
        c.boxes(frames, mix(color, "#ffffff", 0.55))
        c.boxes([g[:4] for g in glass], mix("#1d2a36", color, 0.12))
        if lit:
            c.boxes([g[:4] for g in glass if g[4] < 0.45], lit)
        x += w


def canal(seed, stops, colors, roof, lit=None, sun=None, stars=0):
    """Houses shoulder to shoulder at the water, with a boat."""
    c = Canvas(seed)
    sky(c, stops, sun, stars, 420)
    c.clouds(30, 380, "#ffffff" if not lit else stops[-1][1], 0.45, 0.45)
    houses(c, 640, colors, roof, lit=lit)
    c.boxes([(0, 640, W, 672)], mix("#5b5048", stops[-1][1], 0.2))
    water(c, 672, mix(stops[-1][1], "#2c4a52", 0.5), "#122a33", sun, 2.0, 0.6)
    for x, y, s in ((420, 800, 1.0), (1180, 748, 0.7)):
        c.polygons([[(x - 150 * s, y - 26 * s), (x + 165 * s, y - 30 * s), (x + 125 * s, y + 14 * s), (x - 120 * s, y + 14 * s)]], "#1c2429")
        c.polygons([[(x - 60 * s, y - 27 * s), (x - 46 * s, y - 62 * s), (x + 70 * s, y - 62 * s), (x + 84 * s, y - 28 * s)]], "#c9533a")
        c.boxes([(x - 36 * s, y - 54 * s, x - 6 * s, y - 36 * s), (x + 12 * s, y - 54 * s, x + 48 * s, y - 36 * s)], lit or "#d7e6ea")
    return c


def hill_town(seed, stops, sun, walls, roofs, sea_top=None, dome=None):
    """Small houses piled on a hill; with `sea_top` the hill stands in the sea."""
    c = Canvas(seed)
    sky(c, stops, sun)
    c.clouds(50, 360, "#ffffff", 0.4, 0.4)
    ridge(c, 600, 70, 500, mix(roofs[0], stops[-1][1], 0.6), stops[-1][1])
    foot = 800 if sea_top else H + 60
    if sea_top:
        c.boxes([(0, 596, W, H)], mix(sea_top, stops[-1][1], 0.5))
    hill = foot - 470 * np.exp(-(((np.arange(W) - 900) / 560.0) ** 2)) * (1 + 0.1 * wave(c.rng, W, 200, 4))
    c.blend(c.below(hill) * (c.y < foot), mix(walls[0], "#7a6a4a", 0.5))
    spots = [(c.rng.uniform(0, W), c.rng.uniform(0, 1)) for _ in range(620)]
    spots = sorted(((x, hill[int(x)] + d * (foot - hill[int(x)]) ** 1.0) for x, d in spots if hill[int(x)] < foot - 20), key=lambda s: s[1])
    for x, y in spots:
        s = 0.55 + 0.75 * (y - 300) / 700
        w, h = c.rng.uniform(36, 66) * s, c.rng.uniform(34, 70) * s
        tone = mix(walls[c.rng.integers(len(walls))], "#000000", c.rng.uniform(0, 0.1))
        box(c, x, y, w, h, s, tone, roofs, dome)
    if sea_top:
        water(c, foot, sea_top, mix(sea_top, "#00202c", 0.6), sun, 1.4, 0.42)
    return c


def box(c, x, y, w, h, s, tone, roofs, dome):
    """Draws one small house of a hill town on a small part of the canvas."""
    x0, x1, y0, y1 = int(max(x - 3, 0)), int(min(x + w + 3, W)), int(max(y - h - w, 0)), int(min(y, H))
    if x1 - x0 < 4 or y1 - y0 < 4:
        return
    part = np.s_[y0:y1, x0:x1]
    px, py = c.x[part], c.y[part]

    def paint(mask, color, alpha=1.0):
        m = (mask.astype(np.float32) * alpha)[..., None]
        c.light[part] = c.light[part] * (1 - m) + rgb(color) * m

    front = (px >= x) & (px <= x + w) & (py >= y - h)
    paint(front, tone)
    paint(front & (px > x + w * 0.68), mix(tone, "#2a3550", 0.32))
    roof = roofs[c.rng.integers(len(roofs))]
    kind = c.rng.random()
    if dome and kind < 0.07:
        r = w * 0.42
        paint((np.hypot(px - x - w / 2, (py - y + h) * 1.05) < r) & (py < y - h), dome)
        paint((np.hypot(px - x - w * 0.42, (py - y + h + r * 0.4) * 1.05) < r * 0.3) & (py < y - h), mix(dome, "#ffffff", 0.5), 0.6)
    elif not dome:
        slope = np.abs(px - x - w / 2) / (w / 2 + 3)
        paint((py < y - h + 1) & (py > y - h - w * 0.34 * (1 - slope)), roof)
        paint((py < y - h + 1) & (py > y - h - w * 0.34 * (1 - slope)) & (px > x + w * 0.5), mix(roof, "#000000", 0.25))
    for k in range(2):
        for j in range(1 + int(h > 46 * s)):
            wx, wy = x + w * (0.14 + 0.28 * k), y - h + h * (0.22 + 0.42 * j)
            if c.rng.random() < 0.75:
                paint((px > wx) & (px < wx + w * 0.13) & (py > wy) & (py < wy + h * 0.2), mix(dome or "#33404c", "#1b2733", 0.5))


def lighthouse(seed, stops, sun, top, bottom, night=True):
    """A lighthouse on a rock, with its beam at night."""
    c = Canvas(seed)
    sky(c, stops, sun, 600 if night else 0, 620)
    c.clouds(80, 560, mix(stops[1][1], "#ffffff", 0.2), 0.5, 0.46, (2, 9))
    water(c, 640, top, bottom, sun)
    x, y = 1120, 690
    rock = 700 - 150 * np.exp(-(((np.arange(W) - 1170) / 330.0) ** 2)) * (1 + 0.28 * wave(c.rng, W, 90, 5))
    rock = np.where(np.arange(W) < 760, H + 10, rock) + np.clip(830 - np.arange(W), 0, None) * 0.9
    area = c.gradient((0, mix("#5b5560", stops[-1][1], 0.25)), (1, "#17171f"), start=520, end=860) * (0.72 + 0.56 * cloud(c.rng, 40, 24, 4)[..., None])
    foam = 812 + 12 * wave(c.rng, W, 60, 4)
    c.blend(c.below(rock) * (1 - c.below(foam + 26)), area)
    c.blend(c.below(rock) * np.exp(-np.abs(c.y - foam[None, :] - 14) / 10), mix("#ffffff", top, 0.25), 0.8)
    base = 572
    c.polygons([[(x - 44, base), (x - 27, base - 330), (x + 27, base - 330), (x + 44, base)]], "#f0e8dc")
    for k in range(2):
        a, b = 330 * (0.18 + 0.42 * k), 330 * (0.38 + 0.42 * k)
        wa, wb = 44 - 17 * a / 330, 44 - 17 * b / 330
        c.polygons([[(x - wa, base - a), (x - wb, base - b), (x + wb, base - b), (x + wa, base - a)]], "#b8452f")
    c.polygons([[(x + 10, base), (x + 8, base - 330), (x + 27, base - 330), (x + 44, base)]], "#1b2233", 0.4)
    c.boxes([(x - 38, base - 340, x + 38, base - 328)], "#20242c")
    c.boxes([(x - 20, base - 384, x + 20, base - 340)], "#ffe9ae" if night else "#cfdde0")
    c.boxes([(x - 22, base - 384, x - 18, base - 340), (x - 2, base - 384, x + 2, base - 340), (x + 18, base - 384, x + 22, base - 340)], "#20242c")
    c.polygons([[(x - 27, base - 384), (x, base - 414), (x + 27, base - 384)]], "#20242c")
    if night:
        lamp = base - 362
        angle = np.arctan2(c.y - lamp, c.x - x)
        for target, width in ((np.pi - 0.11, 0.075), (0.12, 0.075)):
            d = np.abs((angle - target + np.pi) % (2 * np.pi) - np.pi)
            beam = np.exp(-((d / width) ** 2)) * np.exp(-np.hypot(c.x - x, c.y - lamp) / 1000)
            c.light += (beam * 0.5)[..., None] * rgb("#ffe7a8")
        c.glow(x, lamp, 95, "#fff0c0", 0.95)
    return c


def viaduct(seed, stops, sun, far, near, mist, stone, lit=False, stars=0):
    """A train on a stone viaduct above a valley."""
    c = Canvas(seed)
    sky(c, stops, sun, stars)
    c.clouds(40, 380, mix(stops[-1][1], "#ffffff", 0.3), 0.5, 0.44)
    for k in range(4):
        t = k / 3
        ridge(c, 440 + 110 * t, 150 - 50 * t, 460 - 120 * t, mix(far, near, t * 0.7), mix(far, mist, 0.6), sharp=k < 2)
        c.haze(400 + 110 * t, 560 + 110 * t, mist, 0.36)
    deck = 560
    piers, cut = [], []
    for k in range(-1, 12):
        x = 60 + k * 150
        piers.append((x - 17, deck, x + 17, H))
        cut.append(x)
    c.boxes([(0, deck - 14, W, deck + 66)], stone)
    c.boxes(piers, mix(stone, "#000000", 0.08))
    hole = np.zeros((H, W), dtype=np.float32)
    backdrop = c.gradient((0, mix(mist, near, 0.25)), (1, mix(mist, near, 0.65)), start=deck, end=H)
    for x in cut:
        m = x + 75
        arch = np.clip((58 - np.hypot(c.x - m, np.minimum(c.y - deck - 86, 0))) / 1.5 + 0.5, 0, 1) * (c.y > deck + 26)
        hole = np.maximum(hole, arch)
    c.blend(hole, backdrop)
    course = 0.5 + 0.5 * np.sign(np.sin(c.y / 5.5))
    c.shade((1 - hole) * (c.y > deck) * course * (np.abs(c.light - rgb(stone)).sum(-1) < 0.25), 0.96)
    c.boxes([(x + 9, deck + 40, x + 17, H) for x in cut], "#101820", 0.3)
    c.boxes([(0, deck - 18, W, deck - 10)], mix(stone, "#ffffff", 0.22))
    train(c, 300, deck - 18, lit)
    slope = 860 + 60 * wave(c.rng, W, 480, 4)
    pines(c, slope, mix(near, "#000000", 0.2), 0.85, (60, 150))
    c.blend(c.below(slope), c.gradient((0, mix(near, "#000000", 0.2)), (1, mix(near, "#000000", 0.55)), start=820, end=H))
    c.haze(640, 900, mist, 0.35)
    return c


def train(c, x, y, lit, color="#7c1f24", cars=6, size=1.0):
    """Draws a train that stands on height `y`."""
    length, h = 178 * size, 62 * size
    glass = "#ffd27a" if lit else "#cfe0e4"
    for k in range(cars):
        a = x + k * (length + 6)
        nose = k == cars - 1
        shape = [(a, y - h), (a + length - (46 * size if nose else 0), y - h), (a + length, y - h * (0.42 if nose else 1)), (a + length, y - 8), (a, y - 8)]
        c.polygons([shape], color)
        c.boxes([(a, y - h, a + length - (46 * size if nose else 0), y - h + 7)], mix(color, "#ffffff", 0.35))
        c.boxes([(a, y - 22 * size, a + length, y - 18 * size)], "#e9d9b8")
        c.boxes([(a + 12 + j * 27 * size, y - h + 15, a + 12 + j * 27 * size + 19 * size, y - h + 34 * size) for j in range(5 if nose else 6)], glass)
        c.ovals([(a + j * size, y - 13 * size, a + (j + 16) * size, y + 3) for j in (18, 40, 126, 148)], "#15171b")
    if lit:
        for k in range(cars):
            c.glow(x + (k + 0.5) * length, y - 34, 110, "#ffb95e", 0.3)
        c.glow(x + cars * (length + 6) + 8, y - 22, 130, "#fff2c8", 0.8)


def bridge(seed):
    """A suspension bridge that rises out of fog."""
    c = Canvas(seed)
    sky(c, [(0, "#8fb3c9"), (0.5, "#e8d3bf"), (1, "#f6e3d0")], (1180, 420, 52, "#fff6df", "#ffd9a0", 0.9))
    ridge(c, 640, 90, 520, "#a9b6bd", "#e2d5c8")
    red = "#a8402c"
    for x, s, tone in ((1250, 0.62, mix(red, "#ecd9c8", 0.45)), (430, 1.0, rgb(red))):
        top, w = 660 - 520 * s, 26 * s
        c.boxes([(x - 70 * s, top, x - 70 * s + w, H), (x + 70 * s - w, top, x + 70 * s, H)], tone)
        c.boxes([(x - 70 * s, top + k * 120 * s + 20, x + 70 * s, top + k * 120 * s + 42 * s) for k in range(4)], mix(tone, "#000000", 0.1))
        c.boxes([(x - 70 * s + w * 0.65, top, x - 70 * s + w, H), (x + 70 * s - w * 0.35, top, x + 70 * s, H)], "#2a1512", 0.25)
    xs = np.linspace(-100, W + 100, 240)
    cable = np.where(xs < 1250, 560 - 420 * ((xs - 880) / 450) ** 2 * np.where(xs < 880, 1.0, 0.55), 340 + (xs - 1250) * 0.7)
    cable = np.where(xs < 430, 140 + (430 - xs) * 0.85, cable)
    cable = np.clip(cable, 100, 690)
    c.lines([list(zip(xs, cable))], 6, red)
    deck = 690 - (xs / W) * 46
    c.lines([[(x, ya), (x, yb)] for x, ya, yb in zip(xs[::4], cable[::4], deck[::4])], 1.6, red, 0.8)
    c.lines([list(zip(xs, deck))], 22, mix(red, "#000000", 0.2))
    c.lines([list(zip(xs, deck - 13))], 3, mix(red, "#ffffff", 0.2))
    fog = smooth((c.y - 520) / 330) * (0.35 + 0.95 * cloud(c.rng, 3, 7, 5))
    c.blend(np.clip(fog, 0, 1), "#f4e9df", 0.96)
    c.blend(smooth((c.y - 800) / 160), "#f3e8de", 0.9)
    return c


def harbor(seed, stops, sun, lit=False):
    """Sailing boats at rest in front of colored houses."""
    c = Canvas(seed)
    sky(c, stops, sun, 300 if lit else 0, 300)
    c.clouds(40, 300, "#ffffff", 0.4, 0.4)
    ridge(c, 430, 120, 520, mix("#6c8b7c", stops[-1][1], 0.45), mix("#86a08f", stops[-1][1], 0.6))
    houses(c, 600, ["#d98f5c", "#e8c27a", "#c9664b", "#e9dcc3", "#a9b7a0", "#d7a58a"], "#a2492f", (84, 130), (130, 230), "#ffd080" if lit else None, "roof")
    c.boxes([(0, 600, W, 628)], "#7d7166")
    water(c, 628, mix(stops[-1][1], "#4c8790", 0.5), "#163f4c", sun, 1.7, 0.55)
    for x, y, s in sorted(((c.rng.uniform(80, W - 80), c.rng.uniform(690, 900), 0) for _ in range(9)), key=lambda b: b[1]):
        s = 0.6 + (y - 660) / 240
        hull = ["#f3efe6", "#23414f", "#b6452f", "#e7d8b4"][c.rng.integers(4)]
        c.polygons([[(x - 96 * s, y - 20 * s), (x + 108 * s, y - 28 * s), (x + 74 * s, y + 12 * s), (x - 78 * s, y + 12 * s)]], hull)
        c.polygons([[(x - 82 * s, y + 4 * s), (x + 84 * s, y + 2 * s), (x + 74 * s, y + 12 * s), (x - 78 * s, y + 12 * s)]], "#14222b", 0.6)
        c.boxes([(x - 40 * s, y - 38 * s, x + 30 * s, y - 22 * s)], mix(hull, "#ffffff", 0.5))
        c.lines([[(x + 8 * s, y - 24 * s), (x + 8 * s, y - 250 * s)], [(x + 8 * s, y - 62 * s), (x - 82 * s, y - 58 * s)]], 3.4 * s, "#43352a")
        c.lines([[(x + 8 * s, y - 250 * s), (x + 104 * s, y - 28 * s)], [(x + 8 * s, y - 250 * s), (x - 90 * s, y - 22 * s)]], 1, "#43352a", 0.8)
        c.ovals([(x - 84 * s, y - 72 * s, x + 6 * s, y - 58 * s)], "#e5dccb")
    return c


def tram(seed):
    """A yellow tram climbs a steep street between tiled houses."""
    c = Canvas(seed)
    c.fill((0, "#f3c88f"), (0.5, "#f7dfb8"), (1, "#f3e7d2"))
    c.glow(800, 330, 420, "#fff2cf", 0.8)
    for side in (-1, 1):
        for k in range(7):
            t0, t1 = 1 - k / 7.5, 1 - (k + 1) / 7.5
            edge0, edge1 = 800 + side * (90 + 720 * t0**1.5), 800 + side * (90 + 720 * t1**1.5)
            b0, b1 = 520 + 480 * t0**1.5, 520 + 480 * t1**1.5
            top0, top1 = 430 - 620 * t0**1.4 + 24 * c.rng.uniform(-1, 1), 430 - 620 * t1**1.4
            tone = mix(["#c8dfe0", "#efe1c6", "#e6b08e", "#8fb3bd", "#e9d5a8", "#d68f78", "#f1e6d8"][(k + (side > 0) * 3) % 7], "#f7dfb8", 0.42 * (1 - t1))
            c.polygons([[(edge0, top0), (edge1, top1), (edge1, b1), (edge0, b0)]], tone if side < 0 else mix(tone, "#4a3c55", 0.26))
            shapes, frames = [], []
            for r in range(6):
                for q in range(2):
                    u0, u1 = 0.16 + 0.42 * q, 0.36 + 0.42 * q
                    v0, v1 = 0.12 + 0.145 * r, 0.21 + 0.145 * r
                    def at(u, v):
                        e, a, b = edge0 + (edge1 - edge0) * u, top0 + (top1 - top0) * u, b0 + (b1 - b0) * u
                        return (e, a + (b - a) * v)
                    frames.append([at(u0 - 0.03, v0 - 0.012), at(u1 + 0.03, v0 - 0.012), at(u1 + 0.03, v1 + 0.012), at(u0 - 0.03, v1 + 0.012)])
                    shapes.append([at(u0, v0), at(u1, v0), at(u1, v1), at(u0, v1)])
            c.polygons(frames, mix(tone, "#ffffff", 0.5))
            c.polygons(shapes, mix("#33454f", tone, 0.25))
    c.polygons([[(715, 520), (885, 520), (1640, H + 10), (-40, H + 10)]], "#b9a48d")
    for x0, x1 in ((770, 610), (830, 990)):
        c.lines([[(x0, 520), (x1, H)]], 7, "#6d6259")
        c.lines([[(x0, 520), (x1, H)]], 2, "#e9dfcf")
    stones = cloud(c.rng, 70, 60, 2)
    c.shade(c.below(np.full(W, 520.0)) * (stones > 0.52), 0.965)
    x, y, s = 800, 850, 1.55
    c.ovals([(x - 130 * s, y - 14 * s, x + 130 * s, y + 16 * s)], "#3a2f2c", 0.45)
    c.polygons([[(x - 100 * s, y - 6 * s), (x - 104 * s, y - 190 * s), (x - 84 * s, y - 226 * s), (x + 84 * s, y - 226 * s), (x + 104 * s, y - 190 * s), (x + 100 * s, y - 6 * s)]], "#f0b429")
    c.boxes([(x - 104 * s, y - 100 * s, x + 104 * s, y - 92 * s)], "#fff3d0")
    c.polygons([[(x - 96 * s, y - 206 * s), (x - 80 * s, y - 226 * s), (x + 80 * s, y - 226 * s), (x + 96 * s, y - 206 * s)]], "#e9e2d2")
    for a, b in ((-88, -40), (-32, 32), (40, 88)):
        c.boxes([(x + a * s, y - 184 * s, x + b * s, y - 112 * s)], "#2a3b46")
        c.polygons([[(x + a * s, y - 184 * s), (x + (a + (b - a) * 0.6) * s, y - 184 * s), (x + a * s, y - 140 * s)]], "#9fc0c8", 0.55)
    c.boxes([(x - 46 * s, y - 214 * s, x + 46 * s, y - 192 * s)], "#1d2328")
    c.boxes([(x - 36 * s, y - 208 * s, x + 36 * s, y - 198 * s)], "#ffe49c")
    c.disc(x, y - 66 * s, 15 * s, "#fff8de")
    c.glow(x, y - 66 * s, 70, "#fff0b8", 0.75)
    c.boxes([(x - 110 * s, y - 22 * s, x + 110 * s, y - 4 * s)], "#58231d")
    wires = [[(x, y - 228 * s), (800, 300)], [(500, 0), (1050, 330)], [(1120, 0), (560, 330)]]
    c.lines(wires, 2, "#4a3f3a", 0.8)
    return c


def window_seat(seed):
    """The view from a compartment, over fields at speed."""
    c = Canvas(seed)
    sky(c, [(0, "#7fb0c9"), (0.6, "#f3dcb9"), (1, "#f7ebd3")], (520, 330, 46, "#fff7e2", "#ffe0a6", 0.9))
    c.clouds(60, 380, "#ffffff", 0.7, 0.5)
    ridge(c, 470, 80, 500, "#7d93a0", "#d6cfbf")
    for k in range(8):
        t = k / 7
        line = 500 + 330 * t**1.5 + 16 * wave(c.rng, W, 600, 2)
        color = mix(["#8f9d52", "#c8a94e", "#6f8a4c", "#d9bd68"][k % 4], "#f3dcb9", 0.45 * (1 - t))
        blur = cloud(c.rng, 2, 90, 2)
        c.blend(c.below(line), mix(color, "#ffffff", 0.1) * (0.86 + 0.28 * blur[..., None]))
    inner = "#3b2a26"
    frame = np.ones((H, W), dtype=np.float32)
    dx, dy = np.clip(np.abs(c.x - 800) - 560, 0, None), np.clip(np.abs(c.y - 420) - 300, 0, None)
    frame = np.clip((np.hypot(dx, dy) - 60) / 2, 0, 1)
    c.blend(frame, c.gradient((0, "#5a3f37"), (1, inner)) * (0.94 + 0.12 * cloud(c.rng, 4, 60, 3)[..., None]))
    rim = np.clip(1 - np.abs(np.hypot(dx, dy) - 66) / 7, 0, 1)
    c.blend(rim, "#c89b5e", 0.9)
    c.polygons([[(60, 850), (1540, 850), (1600, H), (0, H)]], "#7d5238")
    c.boxes([(58, 846, 1542, 858)], "#a87548")
    c.ovals([(1060, 872, 1260, 930)], "#2b1a14", 0.5)
    c.polygons([[(1080, 770), (1240, 770), (1222, 900), (1098, 900)]], "#f4eee2")
    c.ovals([(1080, 752, 1240, 790)], "#e3d9c8")
    c.ovals([(1092, 758, 1228, 786)], "#4a2c1a")
    c.polygons([[(420, 880), (700, 868), (730, 940), (430, 958)]], "#b4472f")
    c.polygons([[(432, 884), (694, 872), (700, 886), (436, 898)]], "#f1e6d0")
    steam = np.exp(-(((c.x - 1160 - 30 * np.sin(c.y / 60)) / 34) ** 2)) * smooth((760 - c.y) / 60) * smooth((c.y - 480) / 200)
    c.blend(steam, "#ffffff", 0.35)
    return c


def station(seed):
    """A train hall of iron and glass, seen from the platform."""
    c = Canvas(seed)
    c.fill((0, "#f2d7a6"), (0.6, "#f7e8cc"), (1, "#c9a77b"))
    c.glow(800, 480, 500, "#fff6de", 0.95)
    arches = []
    for k in range(9):
        t = k / 8
        r = 150 + 900 * t**1.7
        angles = np.linspace(np.pi, 2 * np.pi, 60)
        arches.append((t, [(800 + r * np.cos(a), 600 + 0.78 * r * np.sin(a)) for a in angles], r))
    for t, path, r in reversed(arches):
        c.lines([path], 3 + 15 * t, mix("#4a3a35", "#f0d9b2", 0.75 * (1 - t)))
    ribs = [[(800 + a[2] * np.cos(w), 600 + 0.78 * a[2] * np.sin(w)) for a in (arches[0], arches[4], arches[8])] for w in np.linspace(np.pi * 1.03, np.pi * 1.97, 17)]
    c.lines(ribs, 3, "#5a463e", 0.6)
    for k, (x0, x1) in enumerate(((690, 120), (910, 1480))):
        side = 1 if k else -1
        c.polygons([[(x0 + side * 10, 600), (x0 + side * 120, 600), (W / 2 + side * 1500, H + 20), (x1, H + 20)]], "#8a6a52")
        c.polygons([[(x0 + side * 8, 600), (x0 + side * 14, 600), (x1 + side * 40, H), (x1 - side * 12, H)]], "#f3e3c2")
    for x0, x1 in ((750, 520), (790, 700), (830, 960), (865, 1130)):
        c.lines([[(x0, 600), (x1, H)]], 5, "#5b4a41")
    c.polygons([[(652, 742), (640, 520), (668, 470), (762, 470), (782, 520), (776, 742)]], "#2f4d53")
    c.polygons([[(660, 560), (672, 500), (754, 500), (766, 560)]], "#f0dfb8")
    c.boxes([(648, 640, 778, 652)], "#d9b25c")
    c.disc(676, 690, 10, "#fff3c4")
    c.disc(750, 690, 10, "#fff3c4")
    c.glow(713, 690, 90, "#ffe6a0", 0.5)
    clock = (1010, 250)
    c.lines([[(1010, 60), clock]], 8, "#3a2f2b")
    c.disc(*clock, 66, "#33302e")
    c.disc(*clock, 57, "#fbf4e2")
    c.lines([[clock, (1010, 208)], [clock, (1044, 262)]], 6, "#33302e")
    for px, h in ((280, 118), (340, 106), (1250, 128), (1330, 112), (1190, 92)):
        base = 700 + h * 1.5
        c.ovals([(px - 11, base - h * 1.55, px + 11, base - h * 1.55 + 26)], "#3a2c2b")
        c.polygons([[(px - 20, base - h * 1.3), (px + 20, base - h * 1.3), (px + 15, base), (px - 15, base)]], ["#8c3a2f", "#39505e", "#6b5a34", "#463a52"][int(h) % 4])
    beams = np.clip(np.sin((c.x + c.y * 0.55) / 75), 0, 1) ** 3 * smooth((700 - c.y) / 500)
    c.blend(beams, "#fff7e0", 0.25)
    return c
