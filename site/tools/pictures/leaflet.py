"""The leaflets of the download page: small PDF files, written by hand."""

PAGE = (420, 595)  # A5, in points


def text(x, y, size, font, line, color="0.11 0.10 0.09"):
    """Returns the operators that set one line of text."""
    safe = line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
    return f"BT {color} rg /{font} {size} Tf {x} {y} Td ({safe}) Tj ET\n"


def leaflet(title, deck, blocks, foot):
    """Returns the bytes of a one-page PDF; a block is (heading, lines)."""
    out = "0.984 0.973 0.953 rg 0 0 420 595 re f\n0.651 0.227 0.106 rg 0 500 420 95 re f\n"
    for k in range(5):  # hills along the edge of the title
        shade = 0.08 + 0.05 * k
        out += f"{0.05 + shade / 3:.3f} {0.16 + shade:.3f} {0.20 + shade:.3f} rg 0 500 m {60 + 70 * k} {548 - 9 * k} {120 + 40 * k} {470 + 12 * k} {230 + 20 * k} {532 - 7 * k} c {330 - 10 * k} {560 - 11 * k} {380} {500 + 6 * k} 420 {536 - 8 * k} c 420 500 l f\n"
    out += text(32, 560, 9, "F2", "WAYFARE  -  A MAGAZINE OF SLOW TRAVEL", "0.98 0.91 0.83")
    out += text(32, 466, 26, "F1", title)
    out += text(32, 446, 11, "F3", deck, "0.40 0.36 0.32")
    y = 414
    for heading, lines in blocks:
        out += text(32, y, 12, "F2", heading, "0.651 0.227 0.106")
        y -= 19
        for line in lines:
            out += f"0.40 0.36 0.32 RG 0.8 w 33 {y - 1} 8 8 re S\n" + text(50, y, 10.5, "F4", line)
            y -= 17
        y -= 9
    out += text(32, 28, 8.5, "F4", foot, "0.40 0.36 0.32")
    return pdf(out.encode("latin-1"), title)


def pdf(content, title):
    """Wraps one page's operators into a PDF file."""
    fonts = {"F1": "Times-Roman", "F2": "Helvetica-Bold", "F3": "Times-Italic", "F4": "Helvetica"}
    resources = " ".join(f"/{k} << /Type /Font /Subtype /Type1 /BaseFont /{v} /Encoding /WinAnsiEncoding >>" for k, v in fonts.items())
    parts = [
        b"<< /Type /Catalog /Pages 2 0 R /Lang (en) /ViewerPreferences << /DisplayDocTitle true >> >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {PAGE[0]} {PAGE[1]}] /Contents 4 0 R /Resources << /Font << {resources} >> >> >>".encode(),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
        f"<< /Title ({title}) /Author (Wayfare) >>".encode(),
    ]
    out, places = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", []
    for k, part in enumerate(parts, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (k, part)
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(parts) + 1) + b"".join(b"%010d 00000 n \n" % p for p in places)
    return out + b"trailer\n<< /Size %d /Root 1 0 R /Info 5 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(parts) + 1, start)


LEAFLETS = {
    "one-bag-list": ("The one-bag list", "The one-bag packing list, to print and tick off", leaflet(
        "The one-bag list", "Seven days, one bag that fits under a train seat.",
        [("Wear", ["Three shirts, one of them warm", "Two pairs of trousers, worn in", "Rain jacket that packs into its own pocket", "Underwear for four days, and soap for the rest"]),
         ("Use", ["Notebook and two pencils", "Water bottle, half a liter", "Paper map of the first city", "Charger, cable, nothing else with a battery"]),
         ("Know", ["Last train back, written on paper", "One sentence of thanks in every language on the way", "The name of a street, not only of a hotel"])],
        "Leaflet 2214. Copy it, change it, leave half of it at home.")),
    "night-train-card": ("The sleeper card", "What to do before, on and after a night train, on one page", leaflet(
        "The sleeper card", "Before, on and after a night in a train.",
        [("Before", ["Ask for a berth in the middle of the car", "Eat on the platform, not after midnight", "Put the ticket and passport in one pocket"]),
         ("On board", ["Shoes under the berth, toes to the wall", "Tell the attendant how you like to be woken", "Leave the blind a hand's width open", "Water within reach, phone out of it"]),
         ("After", ["Breakfast in the station that you arrive in", "Walk the first hour; the bag can wait in a locker", "No museum before noon"])],
        "Leaflet 2215. Keep it in the side pocket.")),
}
