"""E9  A flood of selectors and suffixes under a quota. Thousands of URLs that nobody asks for twice, while visitors read 50
pages. Does the ceiling for bytes and files hold, and do the pages in use stay in the cache?
"""
import os
import threading
import time

from .harness import Front, Goals, Render, Visitor, part, table

NEEDS_JMETER = False
MAX_FILES, MAX_MIB = 3000, 20
FLOOD, ATTACKERS = 20_000, 4
PAGES = 50
# What comes while others are evicted may pass the bound by a twentieth before it is not stored any more.
CEILING = 1.05


def taken(docroot):
    """Files and folders, and bytes in whole blocks."""
    files = size = 0
    folders = [docroot]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.name == ".tympan-tmp":
                continue
            try:
                is_folder = entry.is_dir(follow_symlinks=False)
                length = 4096 if is_folder else entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
            files, size = files + 1, size + -(-length // 4096) * 4096
            if is_folder:
                folders.append(entry.path)
    return files, size


def run(arguments):
    render = Render(lambda path: (f"<p>{path}</p>" * 100, {"X-Kept": "1"}))
    cache = f'/headers {{ "X-Kept" }} /x-maxFiles "{MAX_FILES}" /x-maxSize "{MAX_MIB} MiB"'
    goals, is_over = Goals(), threading.Event()
    with Front(arguments.program, os.path.join(arguments.folder, "flood"), [render], cache) as front:
        pages = [f"/content/site/p{number}.html" for number in range(PAGES)]
        times, most_files, most_bytes, answers = [], 0, 0, []

        def read():
            with Visitor(front.at) as visitor:
                while not is_over.is_set():
                    for page in pages:
                        _, _, took = visitor.ask(page)
                        times.append(took * 1000)
                    time.sleep(0.5)

        def flood(attacker):
            with Visitor(front.at) as visitor:
                for number in range(attacker, FLOOD, ATTACKERS):
                    kind = (f"/content/site/p1.x{number}.html", f"/content/site/p2.html/s{number}/x.html")[number % 2]
                    answers.append(visitor.ask(kind)[0])

        # Stored, and used once since.
        for _ in range(2):
            with Visitor(front.at) as visitor:
                for page in pages:
                    visitor.ask(page)
            time.sleep(1.1)
        reader = threading.Thread(target=read)
        reader.start()
        drawn_before = render.count(lambda path: path in pages)
        begun = time.monotonic()
        attackers = [threading.Thread(target=flood, args=(attacker,)) for attacker in range(ATTACKERS)]
        for attacker in attackers:
            attacker.start()
        while any(attacker.is_alive() for attacker in attackers):
            files, size = taken(front.docroot)
            most_files, most_bytes = max(most_files, files), max(most_bytes, size)
            time.sleep(0.1)
        took = time.monotonic() - begun
        is_over.set()
        reader.join()
        drawn = render.count(lambda path: path in pages) - drawn_before
        evicted, full = front.metric("evicted_files_total"), front.metric("store_failures_total")
        told_files, told_bytes = front.metric("cache_files"), front.metric("cache_bytes")
        files, size = taken(front.docroot)
    render.stop()
    errors = sum(status != 200 for status in answers)
    times.sort()
    # Each store that was let in may add a page, its headers and two folders.
    on_the_way = 4 * (ATTACKERS + 2)
    goals.check(most_files <= MAX_FILES * CEILING + on_the_way, f"{most_files} files at most, bound {MAX_FILES}")
    goals.check(most_bytes <= (MAX_MIB << 20) * CEILING, f"{most_bytes / 2**20:.1f} MiB at most, bound {MAX_MIB} MiB")
    goals.check(drawn <= PAGES // 10, f"{drawn} renders of the {PAGES} pages in use during the flood")
    goals.check(errors == 0, f"{errors} of {len(answers)} requests of the flood failed")
    table(("", "files", "MiB"), [("most", most_files, most_bytes / 2**20), ("at the end", files, size / 2**20),
                                 ("as metrics tell", int(told_files), told_bytes / 2**20)])
    print(f"{len(answers)} URLs in {took:.0f} s, {evicted:.0f} files evicted, {full:.0f} answers not stored; "
          f"visitors' p99 {part(times, 0.99):.1f} ms")
    return goals.are_met
