#!/usr/bin/env python3
"""Draws the pictures, the film and the leaflets of the sample site and writes them as assets.

    python3 -m venv venv && venv/bin/pip install pillow numpy imageio-ffmpeg
    venv/bin/python site/tools/pictures.py [--film] [NAME...]

In: `pictures/catalog.py`. Out: `site/content/dam/wayfare`, one `dam:Asset` folder for each picture with its
original (1600 x 1000) and a small rendition (640 x 400). The same versions of Pillow and NumPy
write the same bytes. Without names everything is drawn except the film, which takes minutes.
"""

import argparse
import io
import shutil
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from xml.sax.saxutils import quoteattr

from PIL import Image

from pictures import catalog, film, leaflet

DAM = Path(__file__).resolve().parent.parent / "content" / "dam"
FOLDERS = {"journeys": "Journeys", "cities": "Cities", "coast": "Coasts", "mountains": "Mountains", "north": "The north", "forests": "Forests",
           "deserts": "Deserts", "fields": "Fields", "table": "At table", "culture": "Culture", "christmas": "Christmas", "leaflets": "Leaflets", "films": "Films"}
MOST_BYTES = 118_000
SPACES = {"cq": "http://www.day.com/jcr/cq/1.0", "dam": "http://www.day.com/dam/1.0", "dc": "http://purl.org/dc/elements/1.1/", "jcr": "http://www.jcp.org/jcr/1.0",
          "sling": "http://sling.apache.org/jcr/sling/1.0", "tiff": "http://ns.adobe.com/tiff/1.0/"}


def docview(prefixes, body):
    """Returns a document view: the root element with its namespaces around `body`."""
    spaces = " ".join(f'xmlns:{p}="{SPACES[p]}"' for p in prefixes)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<jcr:root {spaces}{body}\n'


def write(file, data):
    """Writes text or bytes, making the folders above."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data if isinstance(data, bytes) else data.encode())


def write_folder(path, title):
    """Writes the docview of a folder of assets."""
    write(path / ".content.xml", docview(["jcr", "sling"], f'\n    jcr:primaryType="sling:OrderedFolder"\n    jcr:title={quoteattr(title)}/>'))


def write_asset(path, title, description, mime, files, size=None):
    """Writes one asset: its docview, and each rendition with its type."""
    if path.exists():
        shutil.rmtree(path)
    facts = [("dc:description", description), ("dc:format", mime), ("dc:title", title)]
    if size:
        facts += [("tiff:ImageLength", "{Long}%d" % size[1]), ("tiff:ImageWidth", "{Long}%d" % size[0])]
    lines = "".join(f"\n            {k}={quoteattr(v)}" for k, v in facts)
    write(path / ".content.xml", docview(["cq", "dam", "dc", "jcr", "tiff"], f"""
    jcr:primaryType="dam:Asset">
    <jcr:content
        jcr:primaryType="dam:AssetContent"
        jcr:lastModified="{{Date}}2026-10-01T09:00:00.000Z">
        <metadata
            jcr:primaryType="nt:unstructured"{lines}/>
        <renditions jcr:primaryType="nt:folder"/>
    </jcr:content>
</jcr:root>"""))
    for name, (kind, data) in files.items():
        renditions = path / "_jcr_content" / "renditions"
        write(renditions / name, data)
        write(renditions / f"{name}.dir" / ".content.xml", docview(["jcr"], f"""
    jcr:primaryType="nt:file">
    <jcr:content
        jcr:primaryType="nt:resource"
        jcr:mimeType="{kind}"
        jcr:lastModified="{{Date}}2026-10-01T09:00:00.000Z"/>
</jcr:root>"""))


def jpeg(image, most):
    """Returns the best JPEG of at most `most` bytes."""
    for quality in (86, 82, 78, 74, 70, 64, 58, 50):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality, optimize=True, progressive=True, subsampling="4:2:0")
        if out.tell() <= most:
            break
    return out.getvalue()


def draw(name):
    """Draws and writes one picture; returns what it takes on disk."""
    folder, title, description, drawing = catalog.PICTURES[name]
    image = drawing().develop()
    large, small = jpeg(image, MOST_BYTES), jpeg(image.resize((640, 400), Image.LANCZOS), 24_000)
    files = {"original": ("image/jpeg", large), "cq5dam.web.640.400.jpeg": ("image/jpeg", small)}
    write_asset(DAM / "wayfare" / folder / f"{name}.jpg", title, description, "image/jpeg", files, image.size)
    return name, len(large) + len(small)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--film", action="store_true", help="draw the film too")
    arguments.add_argument("names", nargs="*", help="pictures to draw (default: all)")
    chosen = arguments.parse_args()
    write_folder(DAM, "Assets")
    write_folder(DAM / "wayfare", "Wayfare")
    for folder, title in FOLDERS.items():
        write_folder(DAM / "wayfare" / folder, title)
    with ProcessPoolExecutor() as pool:
        total = sum(size for _, size in pool.map(draw, chosen.names or catalog.PICTURES))
    for name, (title, description, data) in leaflet.LEAFLETS.items():
        write_asset(DAM / "wayfare" / "leaflets" / f"{name}.pdf", title, description, "application/pdf", {"original": ("application/pdf", data)})
    if chosen.film:
        file = DAM / "window.tmp.mp4"
        film.write_film(file, *catalog.BERTH)
        data = file.read_bytes()
        file.unlink()
        write_asset(DAM / "wayfare" / "films" / "window.mp4", "What the window showed", "Hills, fields and telegraph poles pass a train window at dawn", "video/mp4", {"original": ("video/mp4", data)}, film.SIZE)
        total += len(data)
    print(f"{total / 1e6:.1f} MB written to {DAM}")


if __name__ == "__main__":
    main()
