"""Things close by: plates, bowls, markets, maps, tiles, lanterns, books and winter evenings."""

import numpy as np

from .canvas import Canvas, H, W, cloud, mix, rgb, smooth, wave
from .nature import pines, ridge, sky


def cloth(c, color, stripe=None, weave=0.05):
    """Fills the canvas with woven linen."""
    c.fill((0, color), (1, mix(color, "#000000", 0.08)))
    threads = 0.5 + 0.25 * np.sin(c.x * 1.9) + 0.25 * np.sin(c.y * 1.9)
    c.shade(threads, 1 - weave)
    c.light *= (0.93 + 0.14 * cloud(c.rng, 5, 4, 4))[..., None]
    if stripe:
        for k in (0, 26, 44):
            c.boxes([(90 + k, 0, 102 + k, H), (1470 - k, 0, 1482 - k, H)], stripe, 0.75)


def wood(c, color):
    """Fills the canvas with boards."""
    c.fill((0, color), (1, mix(color, "#000000", 0.15)))
    c.light *= (0.78 + 0.44 * cloud(c.rng, 4, 90, 3))[..., None]
    c.boxes([(0, y, W, y + 4) for y in (196, 402, 598, 806)], mix(color, "#000000", 0.6))


def shadow(c, x, y, r, dx=22, dy=30, strength=0.5):
    """Darkens the table beside a round thing."""
    d = np.hypot(c.x - x - dx, c.y - y - dy)
    c.shade(smooth((r * 1.14 - d) / (r * 0.26)), 1 - strength)


def plate(c, x, y, r, glaze, rim=None, inner=None):
    """Draws a plate from above."""
    shadow(c, x, y, r)
    c.disc(x, y, r, glaze)
    if rim:
        c.ring(x, y, r * 0.94, r * 0.035, rim)
    well = np.clip((r * 0.72 - np.hypot(c.x - x, c.y - y)) / 2, 0, 1)
    c.blend(well, inner if inner is not None else mix(glaze, "#000000", 0.05))
    c.ring(x, y, r * 0.72, 3, mix(glaze, "#000000", 0.22), 0.7)
    light = np.exp(-(((c.x - x + r * 0.5) / (r * 0.5)) ** 2) - (((c.y - y + r * 0.55) / (r * 0.35)) ** 2))
    c.blend(light * np.clip((r - np.hypot(c.x - x, c.y - y)) / 3, 0, 1), "#ffffff", 0.3)


def strew(c, x, y, r, count, sizes, colors, squash=1.0):
    """Strews small round pieces with their own light and shade within a circle."""
    for _ in range(count):
        a, d = c.rng.uniform(0, 2 * np.pi), r * np.sqrt(c.rng.uniform(0, 1))
        piece(c, x + d * np.cos(a), y + d * np.sin(a), c.rng.uniform(*sizes), colors[c.rng.integers(len(colors))], squash, c.rng.uniform(0, np.pi))


def piece(c, x, y, r, color, squash=1.0, turn=0.0):
    """Draws one small rounded piece on the part of the canvas that it covers."""
    m = int(r * 1.6) + 3
    x0, x1, y0, y1 = max(int(x) - m, 0), min(int(x) + m, W), max(int(y) - m, 0), min(int(y) + m, H)
    if x1 <= x0 or y1 <= y0:
        return
    part = np.s_[y0:y1, x0:x1]
    dx, dy = c.x[part] - x, c.y[part] - y
    u, v = dx * np.cos(turn) + dy * np.sin(turn), (dy * np.cos(turn) - dx * np.sin(turn)) / squash
    d = np.hypot(u, v)
    shade_d = np.hypot(dx - r * 0.2, dy - r * 0.28)
    s = (smooth((r * 1.25 - shade_d) / (r * 0.5)) * 0.35)[..., None]
    c.light[part] *= 1 - s
    a = np.clip(r - d + 0.5, 0, 1)[..., None]
    lit = np.clip(1 - np.hypot(dx + r * 0.35, dy + r * 0.4) / (r * 1.5), 0, 1)[..., None]
    tone = rgb(color) * (0.74 + 0.34 * lit) + lit**4 * 0.28
    c.light[part] = c.light[part] * (1 - a) + tone * a


def leaf(c, x, y, length, turn, color):
    """Draws a pointed leaf with its vein."""
    t = np.linspace(0, 1, 18)
    half = np.sin(t * np.pi) ** 0.8 * length * 0.2
    px, py = t * length, half
    up = list(zip(px, py)) + list(zip(px[::-1], -py[::-1]))
    def turned(points):
        return [(x + a * np.cos(turn) - b * np.sin(turn), y + a * np.sin(turn) + b * np.cos(turn)) for a, b in points]
    c.polygons([turned(up)], color)
    c.lines([turned([(0, 0), (length, 0)])], 2, mix(color, "#ffffff", 0.3))


def grilled_fish(seed):
    """Sardines on a blue plate with lemon."""
    c = Canvas(seed)
    cloth(c, "#e9dfcc", "#2f6f86")
    plate(c, 800, 510, 430, "#f6f3ea", "#2f6f86")
    for k, y in enumerate((360, 480, 600)):
        x0, l, h = 500 + 16 * k, 560, 52
        t = np.linspace(0, 1, 40)
        body = np.sin(np.clip(t * 1.08, 0, 1) * np.pi) ** 0.7 * h
        bend = 26 * np.sin(t * np.pi)
        top = list(zip(x0 + t * l, y - bend - body))
        low = list(zip(x0 + t * l, y - bend + body * 0.8))
        c.polygons([[(px + 8, py + 14) for px, py in top + low[::-1]]], "#4a4238", 0.3)
        c.polygons([top + low[::-1]], "#8fa3ab")
        c.polygons([top + [(px, py + b * 1.0) for (px, py), b in zip(top, body)][::-1]], "#4d6673")
        c.polygons([[(x0 + l - 6, y - 6), (x0 + l + 62, y - 44), (x0 + l + 44, y), (x0 + l + 66, y + 40)]], "#5f7680")
        c.lines([[(x0 + l * q, y - bend[int(q * 39)] - body[int(q * 39)] * 0.7), (x0 + l * q + 22, y - bend[int(q * 39)] + body[int(q * 39)] * 0.55)] for q in (0.3, 0.4, 0.5, 0.6, 0.7)], 7, "#33302d", 0.75)
        c.disc(x0 + 44, y - 14, 9, "#f3ead2")
        c.disc(x0 + 44, y - 14, 5, "#17191b")
    for x, y in ((560, 770), (680, 806), (1080, 748)):
        slice_of(c, x, y, 62, "#f2cf3b", "#fbeea8")
    for k in range(9):
        leaf(c, 860 + 26 * k % 180, 760 + 9 * (k % 4), 64, c.rng.uniform(0, 6.2), mix("#4c7a3a", "#86a84e", c.rng.random()))
    return c


def slice_of(c, x, y, r, peel, flesh, parts=9):
    """Draws a slice of citrus."""
    shadow(c, x, y, r, 8, 12, 0.4)
    c.disc(x, y, r, peel)
    c.disc(x, y, r * 0.9, "#fff7dc")
    for k in range(parts):
        a, b = 2 * np.pi * (k + 0.08) / parts, 2 * np.pi * (k + 0.92) / parts
        arc = [(x + r * 0.82 * np.cos(q), y + r * 0.82 * np.sin(q)) for q in np.linspace(a, b, 8)]
        c.polygons([[(x + r * 0.1 * np.cos((a + b) / 2), y + r * 0.1 * np.sin((a + b) / 2)), *arc]], mix(flesh, peel, 0.35))


def citrus(seed):
    """Slices of orange, lemon and blood orange on deep blue."""
    c = Canvas(seed)
    cloth(c, "#17455a", weave=0.08)
    spots = [(x + (90 if r % 2 else 0), 120 + r * 195) for r in range(5) for x in range(60, W + 100, 232)]
    kinds = (("#f08a24", "#ffc36b"), ("#f4cb2f", "#fff0a0"), ("#d9542e", "#e2574c"), ("#8fb33a", "#d8e88a"))
    for x, y in spots:
        peel, flesh = kinds[c.rng.integers(4)]
        slice_of(c, x + c.rng.uniform(-18, 18), y + c.rng.uniform(-14, 14), c.rng.uniform(74, 98), peel, flesh, 10)
    for _ in range(12):
        leaf(c, c.rng.uniform(0, W), c.rng.uniform(0, H), c.rng.uniform(90, 130), c.rng.uniform(0, 6.2), "#3f7a4d")
    return c


def noodles(seed):
    """A bowl of noodle soup with egg and herbs."""
    c = Canvas(seed)
    wood(c, "#6d4a35")
    x, y, r = 760, 500, 400
    shadow(c, x, y, r, 30, 40, 0.6)
    c.disc(x, y, r, "#1f3c4a")
    c.ring(x, y, r * 0.97, 8, "#d9a75e")
    c.disc(x, y, r * 0.88, "#c98a3f")
    c.light *= 1
    broth = np.clip((r * 0.88 - np.hypot(c.x - x, c.y - y)) / 2, 0, 1)
    c.blend(broth * cloud(c.rng, 7, 6, 4), "#e2ac58", 0.8)
    strands = []
    for k in range(46):
        a, d = c.rng.uniform(0, 2 * np.pi), c.rng.uniform(0, 130)
        cx, cy, rad = x - 30 + d * np.cos(a), y + 20 + d * np.sin(a), c.rng.uniform(40, 170)
        s = c.rng.uniform(0, 2 * np.pi)
        strands.append([(cx + rad * np.cos(q), cy + rad * 0.8 * np.sin(q)) for q in np.linspace(s, s + c.rng.uniform(2, 4.6), 30)])
    for k in range(0, 46, 2):
        c.lines(strands[k : k + 2], 13, "#a8722f", 0.6)
        c.lines(strands[k : k + 2], 9, mix("#f4d998", "#e9c172", c.rng.random()))
    for ex, ey in ((900, 330), (1000, 470)):
        shadow(c, ex, ey, 80, 6, 12, 0.35)
        c.ovals([(ex - 82, ey - 66, ex + 82, ey + 66)], "#fdf8ec")
        c.disc(ex + 6, ey, 42, "#f0a01f")
        c.disc(ex - 4, ey - 10, 18, "#ffd069", 0.7, 12)
    strew(c, 610, 620, 96, 60, (9, 17), ["#4f8a3b", "#7fb04a", "#a9cf67"])
    strew(c, 590, 350, 80, 26, (12, 24), ["#c4472c", "#e0663a"], 0.5)
    for k in range(7):
        c.polygons([[(700 + 34 * k, 690 - 6 * k), (724 + 34 * k, 684 - 6 * k), (742 + 34 * k, 766 - 8 * k), (714 + 34 * k, 772 - 8 * k)]], mix("#243a2c", "#3c5a40", c.rng.random()))
    c.polygons([[(1130, 120), (1146, 116), (1500, 900), (1482, 908)]], "#2a1712")
    c.polygons([[(1190, 96), (1206, 92), (1560, 876), (1542, 884)]], "#2a1712")
    return c


def spices(seed):
    """Bowls of spice in rows, as on a market stall."""
    c = Canvas(seed)
    wood(c, "#4a3328")
    tones = ["#d9822b", "#b3361e", "#e8b93a", "#7a4a1e", "#93702c", "#5d6b2e", "#c95c1a", "#e6d3a3", "#8e2a2a", "#3f2a1c", "#d7a02a", "#a88a5c"]
    k = 0
    for row in range(3):
        for col in range(4):
            x, y = 220 + col * 388 + (row % 2) * -40 + c.rng.uniform(-10, 10), 190 + row * 312 + c.rng.uniform(-8, 8)
            bowl(c, x, y, 158, tones[k], ["#e9e0d0", "#b9c4c4", "#cfa97a", "#31525c"][c.rng.integers(4)])
            k += 1
    return c


def bowl(c, x, y, r, tone, glaze):
    """Draws a bowl heaped with powder."""
    shadow(c, x, y, r, 16, 24, 0.6)
    c.disc(x, y, r, glaze)
    c.disc(x, y, r * 0.9, mix(glaze, "#000000", 0.4))
    d = np.hypot(c.x - x, c.y - y)
    a = np.arctan2(c.y - y + 20, c.x - x + 14)
    heap = np.clip((r * 0.86 - d) / 2, 0, 1)
    lit = 0.82 + 0.3 * np.cos(a + 2.3) * smooth(d / (r * 0.5)) + 0.16 * (cloud(c.rng, 60, 40, 2) - 0.5)
    c.blend(heap, rgb(tone) * lit[..., None])
    c.blend(heap * np.exp(-(((c.x - x + 18) ** 2 + (c.y - y + 24) ** 2) / (r * 0.3) ** 2)), mix(tone, "#ffffff", 0.35), 0.6)


def coffee(seed):
    """Coffee and a pastry on a round marble table."""
    c = Canvas(seed)
    c.fill((0, "#7a4f38"), (1, "#5c3826"))
    c.light *= (0.85 + 0.3 * cloud(c.rng, 6, 6, 4))[..., None]
    shadow(c, 800, 520, 620, 30, 40, 0.6)
    c.disc(800, 520, 640, "#e9e4dc")
    vein = np.abs(cloud(c.rng, 4, 3, 5, 0.6) - 0.5)
    c.blend(np.clip((640 - np.hypot(c.x - 800, c.y - 520)) / 2, 0, 1) * np.exp(-vein * 60), "#9b948c", 0.55)
    c.ring(800, 520, 632, 16, "#b98a4a")
    plate(c, 620, 470, 250, "#f7f2e8", "#9c4a2f")
    c.disc(620, 470, 160, "#f5f0e6")
    shadow(c, 620, 470, 150, 8, 12, 0.35)
    c.disc(620, 470, 150, "#fbf7ef")
    c.disc(620, 470, 130, "#7b4521")
    for k in range(6):
        w, h = 88 - 13 * k, 40 - 5 * k
        yy = 520 - 26 * k
        c.ovals([(620 - w, yy - h, 620 + w, yy + h * 0.7)], "#f0dcbb")
        c.ovals([(620 - w * 0.86, yy - h * 0.36, 620 + w * 0.86, yy + h * 0.86)], "#8a5027")
    c.ovals([(604, 384, 636, 420)], "#f0dcbb")
    c.ovals([(742, 430, 812, 510)], "#f7f2e8")
    c.ovals([(752, 444, 792, 496)], mix("#f7f2e8", "#000000", 0.25))
    plate(c, 1080, 600, 235, "#dfe8e4", "#4d7a78")
    for k in range(9):
        t = (k - 4) / 4
        a = t * 1.15
        x, y = 1080 + 190 * np.sin(a), 640 - 150 * np.cos(a) + 60
        w = 78 - 40 * abs(t) ** 1.4
        piece(c, x, y, w, mix("#d99a45", "#a9662a", abs(t) * 0.7 + 0.2 * (k % 2)), 0.62, a + np.pi / 2)
    c.polygons([[(300, 760), (470, 700), (486, 742), (316, 804)]], "#f3ead8")
    c.lines([[(330, 770), (456, 726)], [(336, 782), (430, 750)]], 3, "#8a7a66")
    strew(c, 900, 860, 60, 10, (9, 14), ["#f7f1e4", "#e6d8bd"])
    return c


def bread(seed):
    """Round loaves with scored crusts and flour."""
    c = Canvas(seed)
    wood(c, "#8b6a4b")
    for x, y, r in ((430, 420, 260), (1010, 330, 230), (860, 760, 270), (1400, 690, 230), (170, 860, 200)):
        shadow(c, x, y, r, 22, 30, 0.6)
        d = np.hypot(c.x - x, c.y - y) / r
        crust = np.clip((1 - d) * r / 2, 0, 1)
        n = cloud(c.rng, 26, 18, 4)
        tone = mix("#a8632a", "#6b3615", 0.5) * (0.7 + 0.5 * n[..., None]) * (1.3 - 0.55 * d[..., None] ** 2)
        c.blend(crust, tone)
        turn = c.rng.uniform(0, np.pi)
        u, v = (c.x - x) * np.cos(turn) + (c.y - y) * np.sin(turn), (c.y - y) * np.cos(turn) - (c.x - x) * np.sin(turn)
        for off in (-0.42, 0.0, 0.42):
            cut = np.exp(-(((v / r - off - 0.06 * np.cos(u / r * 2.4)) / 0.045) ** 2)) * smooth((0.74 - np.abs(u) / r) / 0.2)
            c.blend(cut * crust, "#f0cf93", 0.95)
        flour = smooth((cloud(c.rng, 30, 22, 4) - 0.45) * 5) * np.exp(-(d**2) * 1.6)
        c.blend(flour * crust, "#f7ecd8", 0.6)
    c.blend(smooth((cloud(c.rng, 90, 60, 2) - 0.62) * 8), "#f7ecd8", 0.35)
    return c


def tea(seed):
    """Glasses of mint tea on a brass tray."""
    c = Canvas(seed)
    cloth(c, "#7a2f2b", weave=0.08)
    shadow(c, 800, 500, 440, 26, 36, 0.6)
    c.disc(800, 500, 450, "#c79a45")
    d, a = np.hypot(c.x - 800, c.y - 500), np.arctan2(c.y - 500, c.x - 800)
    c.shade(np.clip((450 - d) / 2, 0, 1) * (0.5 + 0.5 * np.cos(2 * a + 0.8)), 1.25)
    for rr, n in ((410, 48), (330, 36), (230, 24)):
        c.ring(800, 500, rr, 3, "#7d5a1e", 0.8)
        petal = np.exp(-((d - rr + 24 + 14 * np.cos(a * n)) / 4) ** 2)
        c.blend(petal, "#7d5a1e", 0.6)
    for x, y in ((660, 420), (900, 380), (940, 620), (700, 650)):
        shadow(c, x, y, 92, 18, 26, 0.5)
        c.disc(x, y, 94, "#e7efe4")
        c.disc(x, y, 84, "#a8691c")
        c.disc(x - 8, y - 8, 66, "#d38f2e", 0.8, 26)
        c.ring(x, y, 89, 5, "#d9b04f")
        for _ in range(5):
            leaf(c, x + c.rng.uniform(-30, 10), y + c.rng.uniform(-30, 30), c.rng.uniform(44, 66), c.rng.uniform(0, 6.2), mix("#3e7d3b", "#79ad4b", c.rng.random()))
        c.ring(x, y, 76, 3, "#fff6dc", 0.35)
    for x, y, r in ((240, 250, 150), (1390, 780, 170)):
        plate(c, x, y, r, "#e9e2d2", "#2b6f78")
        strew(c, x, y, r * 0.5, 26, (18, 28), ["#6b3b1c", "#8a5227", "#54290f"], 0.7)
    return c


def garden_plate(seed):
    """Tomatoes, beans and cheese on a pale plate."""
    c = Canvas(seed)
    cloth(c, "#cdd8cf", "#a63a1b")
    plate(c, 800, 505, 440, "#fbf7ee", None, "#f4efe2")
    strew(c, 690, 470, 190, 34, (36, 58), ["#c93a22", "#e0582c", "#e98f2d", "#a92a22"])
    strew(c, 930, 590, 150, 60, (16, 26), ["#6f9440", "#8db257", "#4f7a35"], 0.55)
    strew(c, 900, 400, 120, 22, (22, 36), ["#fdf8ea", "#f3ead2"])
    strew(c, 780, 520, 250, 70, (5, 9), ["#2d2a26", "#4f7a35"])
    for _ in range(12):
        a = c.rng.uniform(0, 6.28)
        leaf(c, 800 + 200 * np.cos(a), 510 + 190 * np.sin(a), c.rng.uniform(70, 110), c.rng.uniform(0, 6.2), mix("#2f6b3a", "#6ba04e", c.rng.random()))
    c.boxes([(1330, 150, 1350, 850)], "#8d8f90")
    c.ovals([(1312, 100, 1368, 270)], "#a4a6a7")
    c.polygons([[(236, 480), (262, 480), (258, 860), (240, 860)]], "#8d8f90")
    c.boxes([(222 + 18 * k, 130, 230 + 18 * k, 380) for k in range(4)], "#a4a6a7")
    c.polygons([[(220, 360), (286, 360), (262, 490), (238, 490)]], "#a4a6a7")
    return c


def market(seed):
    """Striped awnings over crates of fruit."""
    c = Canvas(seed)
    c.fill((0, "#2f5661"), (0.5, "#20404a"), (1, "#1a2f36"))
    c.boxes([(0, 0, W, 250)], "#d8c7a6")
    for k in range(8):
        c.boxes([(40 + 200 * k, 30, 130 + 200 * k, 250)], "#6f8a8f")
        c.boxes([(82 + 200 * k, 30, 88 + 200 * k, 250)], "#e9dfc9")
    pairs = (("#b8402a", "#f6ead2"), ("#2c6e73", "#f6ead2"), ("#d9982f", "#f8f0dd"))
    for k, (a, b) in enumerate(pairs):
        x0 = k * 540 - 10
        for j in range(9):
            color = a if j % 2 == 0 else b
            l, r = x0 + j * 60, x0 + (j + 1) * 60
            c.polygons([[(l + (x0 + 270 - l) * 0.12, 190), (r + (x0 + 270 - r) * 0.12, 190), (r, 400), (l, 400)]], color)
            c.ovals([(l, 376, r, 430)], mix(color, "#000000", 0.1))
    c.shade(smooth((c.y - 420) / 30) * (1 - smooth((c.y - 620) / 200)), 0.55)
    fruits = (["#e07b25", "#f09a3a"], ["#b52b22", "#d8452e"], ["#7fa03a", "#a3bf4f"], ["#f0c437", "#f7da6a"], ["#5b2a50", "#7a3a68"], ["#dd9a6a", "#e8b98a"])
    for row in range(2):
        for col in range(5):
            x, y = -40 + col * 350 - row * 90, 570 + row * 220
            w, h = 320, 170
            c.polygons([[(x, y), (x + w, y), (x + w + 14, y + h), (x - 14, y + h)]], "#8a5f38")
            c.polygons([[(x + 12, y + 10), (x + w - 12, y + 10), (x + w - 4, y + h - 44), (x + 4, y + h - 44)]], "#3d2817")
            tones = fruits[(col * 2 + row) % 6]
            for j in range(4):
                for i in range(9):
                    piece(c, x + 26 + i * 34 + (j % 2) * 15, y + 22 + j * 30, 22, tones[c.rng.integers(2)])
            c.boxes([(x - 12, y + h - 46, x + w + 12, y + h - 10)], "#a87846")
            c.boxes([(x - 12, y + h - 28, x + w + 12, y + h - 24)], "#6b4827")
            c.polygons([[(x + 130, y + h - 70), (x + 200, y + h - 74), (x + 203, y + h - 34), (x + 132, y + h - 30)]], "#f5efe0")
    for x in (250, 800, 1350):
        c.lines([[(x, 400), (x, 452)]], 3, "#1b1b1b")
        c.disc(x, 470, 20, "#fff0bf")
        c.glow(x, 470, 210, "#ffd382", 0.7)
    return c


def chart(seed):
    """A map with contour lines, a river and a dotted route."""
    c = Canvas(seed)
    c.fill((0, "#efe4cc"), (1, "#e6d8bb"))
    n = cloud(c.rng, 4, 3, 4, 0.45)
    land = smooth((n - 0.4) * 40)
    c.blend(1 - land, "#a9c9c8", 0.95)
    c.blend(np.exp(-np.abs(n - 0.4) * 340), "#3f6f78", 0.9)
    for k in range(1, 4):
        c.blend(np.exp(-np.abs(n - 0.4 + 0.016 * k) * 700) * (n < 0.4), "#5f929a", 0.5 / k)
    c.blend(smooth((n - 0.52) * 9) * land, "#cdbf8d", 0.8)
    c.blend(smooth((n - 0.62) * 9) * land, "#b79b68", 0.8)
    for k in range(14):
        c.blend(np.exp(-np.abs(n - 0.43 - k * 0.025) * (900 if k % 4 else 500)) * land, "#8a6a42", 0.42 if k % 4 else 0.65)
    c.lines([[(x, 0), (x, H)] for x in range(100, W, 200)] + [[(0, y), (W, y)] for y in range(100, H, 200)], 1, "#6b6f66", 0.35)
    xs = np.linspace(210, 1390, 60)
    ys = 690 - 0.32 * (xs - 210) + 90 * np.sin(xs / 190) + 10 * np.sin(xs / 61)
    for k in range(0, 58, 2):
        c.lines([[(xs[k], ys[k]), (xs[k + 1], ys[k + 1])]], 8, "#b0361c")
    for k in (0, 22, 41, 59):
        c.disc(xs[k], ys[k], 20, "#fbf3e0")
        c.ring(xs[k], ys[k], 20, 6, "#b0361c")
    x, y = 1350, 790
    c.disc(x, y, 118, "#f3ead4", 0.92)
    c.ring(x, y, 118, 4, "#4a4136")
    c.ring(x, y, 98, 2, "#4a4136")
    for k in range(8):
        a = k * np.pi / 4
        r = 94 if k % 2 == 0 else 58
        tip, l, rr = (x + r * np.sin(a), y - r * np.cos(a)), (x + 14 * np.sin(a - 0.8), y - 14 * np.cos(a - 0.8)), (x + 14 * np.sin(a + 0.8), y - 14 * np.cos(a + 0.8))
        c.polygons([[tip, l, (x, y)]], "#b0361c" if k == 0 else "#4a4136")
        c.polygons([[tip, rr, (x, y)]], "#e0b58a" if k == 0 else "#a89878")
    for k in (400, 800, 1200):
        c.shade(np.exp(-np.abs(c.x - k) / 7), 0.86)
        c.shade(smooth((c.x - k) / 90) * (c.x < k + 90), 1.04)
    c.shade(np.exp(-np.abs(c.y - 500) / 7), 0.88)
    return c


def tiles(seed):
    """A wall of glazed blue tiles."""
    c = Canvas(seed)
    size = 200
    u, v = (c.x % size) / size - 0.5, (c.y % size) / size - 0.5
    r, a = np.hypot(u, v), np.arctan2(v, u)
    paint = np.zeros((H, W), dtype=np.float32)
    paint = np.maximum(paint, smooth((0.2 + 0.09 * np.cos(4 * a) - r) * 60) * (1 - smooth((0.12 + 0.05 * np.cos(4 * a) - r) * 60)))
    paint = np.maximum(paint, smooth((0.055 - np.abs(r - 0.05)) * 50) * (r < 0.06))
    corner = np.hypot(np.abs(u) - 0.5, np.abs(v) - 0.5)
    paint = np.maximum(paint, smooth((0.016 - np.abs(corner - 0.3)) * 120))
    paint = np.maximum(paint, smooth((0.01 - np.abs(corner - 0.24)) * 160))
    ca = np.arctan2(np.abs(v) - 0.5, np.abs(u) - 0.5)
    paint = np.maximum(paint, smooth((0.15 + 0.05 * np.cos(8 * ca) - corner) * 70))
    gold = smooth((0.05 - corner) * 80) + smooth((0.035 - np.abs(r - 0.1)) * 60) * (np.cos(4 * a) > 0.55)
    wash = 0.72 + 0.4 * cloud(c.rng, 40, 26, 4)
    tone = cloud(c.rng, 8, 5, 1)
    c.light[:] = rgb("#f1ede2") * (0.94 + 0.1 * tone[..., None])
    c.blend(np.clip(paint * wash, 0, 1), c.gradient((0, "#2a5ca8"), (1, "#1b3f86")))
    c.blend(np.clip(gold, 0, 1), "#e0a92e", 0.9)
    edge = np.minimum(0.5 - np.abs(u), 0.5 - np.abs(v)) * size
    c.shade(np.clip(1 - edge / 2.4, 0, 1), 0.68)
    bevel = np.clip(1 - edge / 9, 0, 1) * np.sign(-(u + v))
    c.light *= (1 + 0.1 * bevel)[..., None]
    c.blend(np.exp(-((c.x * 0.6 + c.y - 700) / 260) ** 2), "#fff4dc", 0.22)
    c.shade(smooth((c.x - 1000 - (c.y - 300) * 0.4) / 120), 0.78)
    return c


def lanterns(seed):
    """Paper lanterns over a dark street."""
    c = Canvas(seed)
    c.fill((0, "#10142c"), (0.6, "#2a1f3f"), (1, "#4b2437"))
    c.stars(160, 420)
    for k in range(5):
        side = k % 2
        x = -20 if side else W - 300 + 40 * k
        c.boxes([(x, 200 + 60 * k, x + 330, H)], mix("#140f22", "#2a1a33", k / 5))
    for s in range(5):
        t = s / 4
        y0, sag = 60 + 120 * t, 90 + 120 * t
        xs = np.linspace(-40, W + 40, 9 - s)
        line_x = np.linspace(-40, W + 40, 60)
        c.lines([list(zip(line_x, y0 + sag * np.sin((line_x + 40) / (W + 80) * np.pi)))], 2, "#0a0814")
        for x in xs[1:-1]:
            y = y0 + sag * np.sin((x + 40) / (W + 80) * np.pi)
            r = 30 + 62 * t * c.rng.uniform(0.85, 1.1)
            x += c.rng.uniform(-24, 24)
            lantern(c, x, y + r, r, ["#e0402a", "#f08a2c", "#f2b43c", "#d83a4e"][c.rng.integers(4)])
    c.blend(smooth((c.y - 760) / 240), "#1a0f1c", 0.65)
    c.glow(800, 940, 620, "#f08a3c", 0.25, 1.4)
    heads = []
    for _ in range(46):
        x, s = c.rng.uniform(0, W), c.rng.uniform(0.7, 1.5)
        y = 870 + 60 * s
        heads += [(x - 22 * s, y - 26 * s, x + 22 * s, y + 26 * s), (x - 58 * s, y + 22 * s, x + 58 * s, y + 170 * s)]
    c.ovals(heads, "#0b0610")
    return c


def lantern(c, x, y, r, color):
    """Draws a ribbed paper lantern that glows from within."""
    c.glow(x, y, r * 2.6, color, 0.55)
    u, v = (c.x - x) / r, (c.y - y) / (r * 0.92)
    d = np.hypot(u, v)
    body = np.clip((1 - d) * r / 2, 0, 1)
    rib = 0.9 + 0.1 * np.cos(v * 22)
    c.blend(body, (rgb(color) * (1.15 - 0.55 * d[..., None] ** 2) + (np.exp(-(d**2) * 3.5) * 0.55)[..., None] * rgb("#ffe9a8")) * rib[..., None])
    c.boxes([(x - r * 0.3, y - r * 1.02, x + r * 0.3, y - r * 0.84), (x - r * 0.3, y + r * 0.82, x + r * 0.3, y + r * 0.98)], "#1c0f12")
    c.lines([[(x, y + r), (x, y + r * 1.5)]], max(2, r * 0.05), "#e8b54a")


def books(seed):
    """Shelves of old books and a lamp."""
    c = Canvas(seed)
    c.fill((0, "#2a1a12"), (1, "#1a100b"))
    tones = ["#7d2a22", "#284a4f", "#b98a3e", "#3c4f35", "#8a5a34", "#d9c8a4", "#41304f", "#a34a2c", "#5c6b6f"]
    for row in range(4):
        floor = 232 + row * 254
        x = 14.0
        while x < W - 20:
            w, h = c.rng.uniform(22, 58), c.rng.uniform(140, 204)
            tone = mix(tones[c.rng.integers(9)], "#000000", c.rng.uniform(0, 0.3))
            c.boxes([(x, floor - h, x + w - 2, floor)], tone)
            c.boxes([(x, floor - h, x + 4, floor), (x + w - 7, floor - h, x + w - 2, floor)], "#000000", 0.28)
            if c.rng.random() < 0.7:
                c.boxes([(x, floor - h * 0.86, x + w - 2, floor - h * 0.82), (x, floor - h * 0.2, x + w - 2, floor - h * 0.16)], "#e0b860", 0.75)
            x += w
            if c.rng.random() < 0.05:
                x += c.rng.uniform(30, 80)
        c.boxes([(0, floor, W, floor + 22)], "#6b4326")
        c.boxes([(0, floor, W, floor + 5)], "#94663c")
    c.light *= (0.45 + 0.75 * np.exp(-(((c.x - 1080) / 620) ** 2) - (((c.y - 520) / 460) ** 2)))[..., None]
    c.lines([[(1080, 0), (1080, 340)]], 5, "#1a1310")
    c.polygons([[(1020, 340), (1140, 340), (1230, 470), (930, 470)]], "#2f6b5a")
    c.ovals([(930, 448, 1230, 492)], "#fff0bf")
    c.glow(1080, 490, 420, "#ffcf7a", 0.6)
    return c


def stage(seed):
    """A stage with a red curtain and one light."""
    c = Canvas(seed)
    c.fill((0, "#2a0a0e"), (1, "#14060a"))
    folds = 0.5 + 0.5 * np.sin(c.x / 21 + 1.4 * np.sin(c.x / 170) + c.y / 900)
    c.light[:] = mix("#4f0d14", "#b5202a", 0.5) * (0.35 + 0.85 * folds[..., None] ** 1.5)
    c.light *= (0.6 + 0.5 * (1 - c.y / H))[..., None]
    swag = 150 + 70 * np.abs(np.sin(np.arange(W) / W * np.pi * 5))
    top = 1 - c.below(swag.astype(np.float32))
    c.blend(top, mix("#5f1018", "#c02a30", 0.4) * (0.5 + 0.6 * (0.5 + 0.5 * np.cos(c.y / 13 + np.sin(c.x / 60)))[..., None]))
    c.blend(np.exp(-np.abs(c.y - swag[None, :]) / 6), "#d9a441", 0.9)
    c.polygons([[(0, 800), (W, 800), (W, H), (0, H)]], "#4a2c1c")
    boards = cloud(c.rng, 90, 3, 2)
    c.light[800:] *= (0.75 + 0.5 * boards[800:])[..., None]
    c.lines([[(800 + k * 60, 800), (800 + k * 130, H)] for k in range(-14, 15)], 2, "#1d0f08")
    spot = np.clip(1 - np.hypot((c.x - 800) / 330, (c.y - 880) / 92), 0, 1)
    cone = np.clip(1 - np.abs(c.x - 800) / (40 + 0.33 * c.y), 0, 1) * (c.y < 900)
    c.light += (cone**1.4 * 0.2)[..., None] * rgb("#ffe6b0")
    c.light += (smooth(spot * 2) * 0.5)[..., None] * rgb("#ffe6b0")
    c.light = np.clip(c.light, 0, 1)
    c.polygons([[(770, 880), (774, 700), (826, 700), (830, 880), (818, 880), (814, 720), (786, 720), (782, 880)]], "#120a08")
    c.boxes([(762, 786, 838, 800), (768, 640, 776, 800)], "#120a08")
    c.ovals([(830, 640, 930, 760), (812, 740, 950, 880)], "#8a4a1c")
    c.ovals([(866, 770, 896, 800)], "#1c0d06")
    c.polygons([[(872, 660), (888, 660), (884, 470), (876, 470)]], "#2b170c")
    return c


def loom(seed):
    """Woven bands in the colors of dyed wool."""
    c = Canvas(seed)
    y = 0.0
    tones = ["#8c2f2a", "#d98a3c", "#1f4e5a", "#e9d9b5", "#5a2a4a", "#c9a13c", "#2f6b55", "#b5533a"]
    while y < H:
        h = c.rng.uniform(34, 110)
        a, b = tones[c.rng.integers(8)], tones[c.rng.integers(8)]
        band = (c.y >= y) & (c.y < y + h)
        c.blend(band.astype(np.float32), a)
        kind = c.rng.integers(4)
        p = c.rng.choice([40, 64, 80])
        u, v = (c.x % p) / p - 0.5, (c.y - y) / h - 0.5
        if kind == 0:
            c.blend(band * (np.abs(u) + np.abs(v) < 0.42), b)
            c.blend(band * (np.abs(u) + np.abs(v) < 0.2), a)
        elif kind == 1:
            c.blend(band * (np.abs(v - 0.5 * np.abs(u * 2) + 0.25) < 0.14), b)
        elif kind == 2:
            c.blend(band * (np.abs(u) < 0.22) * (np.abs(v) < 0.3), b)
        else:
            c.blend(band * (np.abs(v) < 0.12), b)
        y += h
    c.shade(0.5 + 0.5 * np.sin(c.x * 0.9), 0.86)
    c.shade(0.5 + 0.5 * np.sin(c.y * 0.8 + np.sin(c.x * 0.9)), 0.84)
    c.light *= (0.86 + 0.26 * cloud(c.rng, 6, 5, 4))[..., None]
    shade = smooth((np.sin(c.x / 230 + 0.6 * np.sin(c.y / 300)) + 1) / 2)
    c.light *= (0.72 + 0.36 * shade)[..., None]
    return c


def luggage(seed):
    """What one bag holds, laid out on the floor."""
    c = Canvas(seed)
    c.fill((0, "#d9b48a"), (1, "#c99f72"))
    c.light *= (0.94 + 0.12 * cloud(c.rng, 5, 60, 3))[..., None]

    def block(x, y, w, h, color, line=None):
        c.shade(smooth(1 - (np.clip(np.abs(c.x - x - w / 2 - 12) - w / 2, 0, None) + np.clip(np.abs(c.y - y - h / 2 - 16) - h / 2, 0, None)) / 26), 0.7)
        c.boxes([(x, y, x + w, y + h)], color)
        for k in range(1, (line or 0) + 1):
            c.boxes([(x, y + h * k / (line + 1) - 2, x + w, y + h * k / (line + 1) + 2)], mix(color, "#000000", 0.25))

    block(120, 120, 430, 560, "#2f5560")
    block(150, 160, 370, 190, "#3a6672")
    block(150, 400, 370, 240, "#284a54", 0)
    c.boxes([(300, 96, 370, 130), (160, 375, 510, 381)], "#c99a4a")
    c.boxes([(196, 120, 216, 680), (454, 120, 474, 680)], "#9c5a34")
    block(640, 110, 250, 200, "#b8452f", 3)
    block(640, 340, 250, 200, "#efe4cf", 3)
    block(640, 570, 250, 200, "#54704e", 3)
    block(960, 120, 200, 280, "#1f2a3c")
    c.ring(1060, 240, 44, 6, "#d9b25c")
    c.boxes([(1010, 330, 1110, 340), (1030, 352, 1090, 360)], "#d9b25c")
    block(1220, 120, 260, 180, "#26282b")
    c.disc(1350, 210, 74, "#3a3d41")
    c.disc(1350, 210, 54, "#15181c")
    c.disc(1338, 198, 20, "#4f6d86", 0.8, 10)
    c.boxes([(1240, 100, 1290, 124)], "#3a3d41")
    block(960, 460, 520, 310, "#efe6cf")
    n = cloud(c.rng, 7, 6, 3)
    area = (c.x > 960) * (c.x < 1480) * (c.y > 460) * (c.y < 770)
    for k in range(8):
        c.blend(area * np.exp(-np.abs(n - 0.3 - 0.05 * k) * 420), "#7d9a72", 0.7)
    c.boxes([(1133, 460, 1136, 770), (1306, 460, 1309, 770)], "#bfb293")
    for x in (190, 350):
        c.ovals([(x - 50, 750, x + 60, 950)], "#7a4a2a")
        c.ovals([(x - 30, 770, x + 40, 850)], "#4a2a16")
        c.lines([[(x - 26, 862 + 14 * k), (x + 36, 866 + 14 * k)] for k in range(4)], 4, "#e9d9b5")
    c.lines([[(700, 860), (980, 840)]], 26, "#d9a441")
    c.polygons([[(980, 826), (1030, 840), (981, 853)]], "#f0dcb8")
    block(1120, 830, 300, 100, "#f7f1e2")
    c.boxes([(1140, 850, 1260, 858), (1140, 874, 1300, 880), (1140, 894, 1230, 900)], "#7d7466")
    c.boxes([(1340, 844, 1344, 916)], "#c9bfa8")
    return c


def balloons(seed):
    """Hot-air balloons over a plain at sunrise."""
    c = Canvas(seed)
    sky(c, [(0, "#5d8fb5"), (0.45, "#f2c9a0"), (0.7, "#f7dfc0"), (1, "#f7dfc0")], (330, 560, 60, "#fff4d8", "#ffd08a", 0.95))
    c.clouds(60, 420, "#ffffff", 0.5, 0.45)
    for k in range(4):
        t = k / 3
        ridge(c, 700 + 80 * t, 60 + 20 * t, 240 + 60 * k, mix("#c99a86", "#7a4f3f", t), mix("#e7c7ac", "#a8745a", t), rough=0.6)
        c.haze(640 + 80 * t, 780 + 80 * t, "#f7dfc0", 0.3)
    spots = [(1130, 330, 150), (620, 250, 96), (860, 520, 62), (1420, 560, 50), (330, 180, 44), (1330, 150, 58), (170, 420, 36), (480, 560, 30)]
    schemes = (("#b8352a", "#f4d9a0"), ("#1f5a6b", "#f0e2c0"), ("#d98a2b", "#7a2b3c"), ("#47306b", "#e8a44a"))
    for k, (x, y, r) in enumerate(spots):
        a, b = schemes[k % 4]
        balloon(c, x, y, r, a, b, min(1.0, 0.4 + r / 150))
    return c


def balloon(c, x, y, r, a, b, near):
    """Draws one balloon with its basket."""
    t = np.linspace(0, 1, 50)
    half = np.where(t < 0.62, np.sin(np.clip(t / 0.62, 0, 1) * np.pi / 2) ** 0.75, np.cos((t - 0.62) / 0.38 * np.pi / 2) * 0.86 + 0.14)
    half = np.where(t < 0.5, np.sqrt(np.clip(1 - (1 - t / 0.5) ** 2, 0, 1)), half)
    half = np.minimum(half, np.interp(t, [0, 0.5, 0.75, 1], [1, 1, 0.72, 0.16]))
    ys = y - r + t * r * 2.35
    haze = "#f2cfae"
    for k in range(10):
        u0, u1 = np.sin((k / 10 - 0.5) * np.pi), np.sin(((k + 1) / 10 - 0.5) * np.pi)
        left, right = list(zip(x + half * r * u0, ys)), list(zip(x + half * r * u1, ys))
        tone = mix(a if k % 2 else b, "#2a1020", 0.34 * k / 10)
        c.polygons([left + right[::-1]], mix(haze, tone, near))
    c.lines([[(x - r * 0.14, ys[-1]), (x - r * 0.1, ys[-1] + r * 0.42)], [(x + r * 0.14, ys[-1]), (x + r * 0.1, ys[-1] + r * 0.42)]], max(1, r * 0.016), mix(haze, "#3a2418", near))
    c.boxes([(x - r * 0.14, ys[-1] + r * 0.4, x + r * 0.14, ys[-1] + r * 0.6)], mix(haze, "#5a361e", near))


def snow(c, count=900, sizes=(1, 4)):
    """Lets snow fall in front of everything."""
    for x, y, r in zip(c.rng.uniform(0, W, count), c.rng.uniform(0, H, count), c.rng.uniform(*sizes, count)):
        x0, x1, y0, y1 = max(int(x - r - 2), 0), int(x + r + 3), max(int(y - r - 2), 0), int(y + r + 3)
        part = np.s_[y0:y1, x0:x1]
        d = np.hypot(c.x[part] - x, c.y[part] - y)
        a = (np.clip(r - d, 0, 1) * 0.8)[..., None]
        c.light[part] = c.light[part] * (1 - a) + a


def winter_village(seed):
    """A snowed-in village with lit windows under a blue evening."""
    c = Canvas(seed)
    sky(c, [(0, "#0f1c3f"), (0.5, "#2f4a7a"), (0.75, "#8a8fb5")], stars=400, star_floor=420)
    ridge(c, 480, 170, 460, "#42588c", "#7d8ab0", sharp=True)
    line = ridge(c, 590, 80, 380, "#6f80ab", "#9aa6c8")
    pines(c, line + 6, "#22335c", 0.7, (30, 80))
    for row in range(3):
        t = row / 2
        ground = 640 + 130 * row + 20 * wave(c.rng, W, 420, 3)
        c.blend(c.below(ground), c.gradient((0, mix("#a9b6d6", "#e2e9f5", t)), (1, mix("#7f90ba", "#b3c0de", t)), start=float(ground.min()), end=float(ground.max() + 200)))
        for x in np.arange(120 - 50 * row, W, 250 + 40 * row):
            x = x + c.rng.uniform(-40, 40)
            s = 0.7 + 0.42 * row
            cottage(c, x, ground[int(np.clip(x, 0, W - 1))] + 20 * s, s)
        pines(c, ground + 10, mix("#1b2a4d", "#101a33", t), 0.16, (60 + 40 * row, 120 + 60 * row))
    x, y = 830, 610
    c.polygons([[(x - 26, y), (x - 26, y - 150), (x, y - 260), (x + 26, y - 150), (x + 26, y)]], "#2a2f4f")
    c.polygons([[(x - 30, y - 148), (x, y - 266), (x + 30, y - 148), (x + 20, y - 150), (x, y - 230), (x - 20, y - 150)]], "#dfe7f5")
    c.disc(x, y - 110, 13, "#ffd98a")
    c.glow(x, y - 110, 50, "#ffb95a", 0.6)
    snow(c)
    return c


def cottage(c, x, y, s):
    """Draws a cottage with snow on its roof and warm windows."""
    wall = mix("#5a3a34", "#3d2b3a", c.rng.random())
    c.boxes([(x - 62 * s, y - 66 * s, x + 62 * s, y)], wall)
    c.polygons([[(x - 80 * s, y - 60 * s), (x - 34 * s, y - 118 * s), (x + 34 * s, y - 118 * s), (x + 80 * s, y - 60 * s)]], "#e9eff9")
    c.polygons([[(x - 80 * s, y - 60 * s), (x + 80 * s, y - 60 * s), (x + 76 * s, y - 68 * s), (x - 76 * s, y - 68 * s)]], "#a9b7d6")
    c.boxes([(x + 22 * s, y - 146 * s, x + 40 * s, y - 112 * s)], wall)
    for a in (-44, -6, 30):
        c.boxes([(x + a * s, y - 48 * s, x + (a + 20) * s, y - 22 * s)], "#ffcf75")
        c.boxes([(x + (a + 9) * s, y - 48 * s, x + (a + 11) * s, y - 22 * s)], wall)
    c.glow(x, y - 30 * s, 120 * s, "#ffab4a", 0.32)
    c.polygons([[(x - 70 * s, y + 3), (x + 70 * s, y + 3), (x + 100 * s, y + 34 * s), (x - 100 * s, y + 34 * s)]], "#ffc27a", 0.2)


def christmas_tree(seed):
    """A tall tree with lights on a snowy square."""
    c = Canvas(seed)
    sky(c, [(0, "#0b1430"), (0.6, "#26335f"), (1, "#4a4a78")], stars=300, star_floor=500)
    x = -20.0
    while x < W:
        w, h = c.rng.uniform(110, 170), c.rng.uniform(240, 390)
        tone = mix(["#4a2f3f", "#3a3555", "#57384a", "#2f3f5a"][c.rng.integers(4)], "#0c1226", 0.25)
        c.boxes([(x, 760 - h, x + w - 3, 760)], tone)
        c.polygons([[(x - 4, 761 - h), (x + w / 2, 761 - h - w * 0.55), (x + w + 1, 761 - h)]], "#c9d3ea")
        panes = [(x + w * (0.16 + 0.27 * i), 760 - h + 30 + 62 * j) for i in range(3) for j in range(int(h / 70))]
        c.boxes([(a, b, a + w * 0.15, b + 34) for a, b in panes if c.rng.random() < 0.6], "#ffc66b")
        x += w
    c.haze(600, 770, "#6a6a9a", 0.35)
    c.blend(c.below(760 + 8 * wave(c.rng, W, 300, 3)), c.gradient((0, "#aab8dd"), (1, "#5d6c9c"), start=750, end=H))
    cx, base = 800, 860
    c.glow(cx, 520, 480, "#ffb04a", 0.4)
    c.boxes([(cx - 22, base - 30, cx + 22, base + 16)], "#2b1a12")
    for k in range(6):
        t = k / 5
        y, w = base - 30 - 118 * k, 290 * (1 - t) + 50
        zig = [(cx - w + 2 * w * q / 12, y + (18 if q % 2 else 0)) for q in range(13)]
        c.polygons([[(cx, y - 230), *reversed(zig)]], mix("#12352c", "#1f5a45", t * 0.8))
        c.lines([zig], 8, "#dfe9f2", 0.75)
    for _ in range(230):
        t = c.rng.uniform(0, 1) ** 0.7
        y = 180 + 640 * t
        px = cx + c.rng.uniform(-1, 1) * (20 + 290 * t)
        color = ["#ffd36b", "#ff7a4a", "#fff1c0", "#ff5468"][c.rng.integers(4)]
        small_glow(c, px, y, c.rng.uniform(9, 20), color)
    star = [(cx + (46 if k % 2 == 0 else 18) * np.sin(k * np.pi / 5), 120 - (46 if k % 2 == 0 else 18) * np.cos(k * np.pi / 5)) for k in range(10)]
    c.glow(cx, 120, 150, "#ffe08a", 0.9)
    c.polygons([star], "#fff4c8")
    snow(c, 700)
    return c


def small_glow(c, x, y, r, color):
    """Draws a little lamp on the part of the canvas that it lights."""
    m = int(r * 3)
    x0, x1, y0, y1 = max(int(x) - m, 0), min(int(x) + m, W), max(int(y) - m, 0), min(int(y) + m, H)
    if x1 <= x0 or y1 <= y0:
        return
    part = np.s_[y0:y1, x0:x1]
    d = np.hypot(c.x[part] - x, c.y[part] - y) / r
    g = np.clip(np.exp(-(d**2) * 1.2) * 0.9 + (d < 0.32) * 0.9, 0, 1)[..., None]
    c.light[part] = 1 - (1 - np.clip(c.light[part], 0, 1)) * (1 - g * rgb(color))


def christmas_market(seed):
    """Stalls with lights in the dusk, snow on their roofs."""
    c = Canvas(seed)
    sky(c, [(0, "#1a1f45"), (0.5, "#5a3f6b"), (0.8, "#c97a6b")], stars=120, star_floor=260)
    c.polygons([[(560, 640), (560, 240), (600, 220), (600, 90), (622, 30), (644, 90), (644, 220), (684, 240), (684, 640)]], "#2b2446")
    c.boxes([(0, 420, 560, 640), (684, 380, W, 640)], "#33294d")
    c.boxes([(a, b, a + 22, b + 36) for a in range(30, 1560, 74) for b in (450, 530) if c.rng.random() < 0.45], "#f2b45e", 0.8)
    c.haze(440, 660, "#a86a70", 0.3)
    c.blend(c.below(640 + 6 * wave(c.rng, W, 300, 2)), c.gradient((0, "#b9a9c4"), (1, "#59527f"), start=630, end=H))
    for row, (y, s) in enumerate(((720, 0.8), (900, 1.25))):
        for k in range(4 if row else 6):
            x = (150 + k * 270) if not row else (110 + k * 460)
            stall(c, x + c.rng.uniform(-20, 20), y, s, ["#7a2b2a", "#2b4f4a", "#6b4a24", "#4a2f5a"][(k + row) % 4])
    for s in range(3):
        xs = np.linspace(-20, W + 20, 48)
        ys = 250 + 70 * s + 70 * np.abs(np.sin(xs / 260 + s))
        c.lines([list(zip(xs, ys))], 1.6, "#1a1226")
        for x, y in zip(xs[::2], ys[::2]):
            small_glow(c, x, y + 6, 15, "#ffd98a")
    snow(c, 800)
    return c


def stall(c, x, y, s, color):
    """Draws a market stall lit from inside."""
    c.boxes([(x - 110 * s, y - 130 * s, x + 110 * s, y)], "#3a2118")
    c.boxes([(x - 98 * s, y - 122 * s, x + 98 * s, y - 50 * s)], "#ffcb70")
    c.glow(x, y - 86 * s, 190 * s, "#ffae48", 0.55)
    c.boxes([(x - 110 * s, y - 52 * s, x + 110 * s, y - 40 * s)], "#8a5a34")
    c.boxes([(x - 110 * s, y - 40 * s, x + 110 * s, y)], color)
    for k in range(9):
        piece(c, x - 84 * s + 21 * k * s, y - 60 * s, 11 * s, ["#b5332a", "#d9a03a", "#3f6b3a", "#8a4a24"][c.rng.integers(4)])
    c.polygons([[(x - 132 * s, y - 122 * s), (x - 84 * s, y - 178 * s), (x + 84 * s, y - 178 * s), (x + 132 * s, y - 122 * s)]], color)
    c.polygons([[(x - 130 * s, y - 132 * s), (x - 84 * s, y - 186 * s), (x + 84 * s, y - 186 * s), (x + 130 * s, y - 132 * s), (x + 96 * s, y - 142 * s), (x + 30 * s, y - 136 * s), (x - 40 * s, y - 144 * s)]], "#eef2fa")


def gingerbread(seed):
    """Stars and hearts of gingerbread with icing."""
    c = Canvas(seed)
    cloth(c, "#8c2a2a", weave=0.1)
    for row in range(4):
        for col in range(6):
            x, y = 150 + col * 262 + (row % 2) * 60, 140 + row * 245
            x, y = x + c.rng.uniform(-16, 16), y + c.rng.uniform(-14, 14)
            kind, turn = (row + col) % 3, c.rng.uniform(-0.5, 0.5)
            us, vs = cutter(kind)
            def ring(k):
                return [(x + k * (u * np.cos(turn) - v * np.sin(turn)), y + k * (u * np.sin(turn) + v * np.cos(turn))) for u, v in zip(us, vs)]
            c.polygons([[(px + 9, py + 13) for px, py in ring(1.05)]], "#3a0f10", 0.45)
            c.polygons([ring(1.05)], "#7a4420")
            c.polygons([ring(1.0)], mix("#a9652f", "#b97438", c.rng.random()))
            c.lines([ring(0.86)], 6, "#fdf8ee")
            for k in range(6):
                a = k * np.pi / 3 + turn
                piece(c, x + 32 * np.cos(a), y + 32 * np.sin(a), 8, ["#fdf8ee", "#d83a3a", "#4f9a5a"][k % 3])
            piece(c, x, y, 12, "#fdf8ee")
    strew(c, 800, 500, 900, 60, (4, 8), ["#f7e9c8", "#d9b25c"])
    return c


def cutter(kind):
    """Returns the outline of a cookie cutter: 0 a star, 1 a heart, 2 a round."""
    q = np.linspace(0, 2 * np.pi, 121)
    if kind == 0:
        r = 74 + 26 * np.cos(5 * q)
        return r * np.sin(q), -r * np.cos(q)
    if kind == 1:
        return 6 * 16 * np.sin(q) ** 3, -6 * (13 * np.cos(q) - 5 * np.cos(2 * q) - 2 * np.cos(3 * q) - np.cos(4 * q))
    return 88 * np.sin(q), -88 * np.cos(q)
