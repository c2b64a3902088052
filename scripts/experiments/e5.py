"""E5  enableTTL. A page lives 60 s and a library a day by their headers. Time is moved by changing the times of files.
Before version 4.3.5 of the original a file that had not expired was not looked at any further; since then, and here, a flush
counts at once.
"""
import os
import time

from .harness import Front, Goals, Render, Visitor, table

NEEDS_JMETER = False
PAGE = "/content/site/en.html"
LIBRARY = "/etc.clientlibs/site/base.css"


def shift(file, seconds):
    stat = os.stat(file)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns + int(seconds * 1e9)))


def run(arguments):
    lives = {PAGE: 60, LIBRARY: 86_400}
    render = Render(lambda path: (f"{path} {time.time()}", {"Cache-Control": f"max-age={lives[path]}"}))
    goals, rows = Goals(), []
    with Front(arguments.program, os.path.join(arguments.folder, "ttl"), [render], '/enableTTL "1"') as front, \
            Visitor(front.at) as visitor:
        def step(what, path, is_drawn):
            before = render.count()
            visitor.ask(path)
            drawn = render.count() - before
            rows.append((what, path, "drawn" if is_drawn else "from cache", "drawn" if drawn else "from cache"))
            goals.check(drawn == is_drawn, what)

        for path, life in lives.items():
            begun = time.time()
            step("first visit", path, 1)
            ends = os.stat(front.file(path) + ".ttl").st_mtime - begun
            goals.check(abs(ends - life) < 2, f"{path} ends {ends:.1f} s after it was asked for")
            step("second visit", path, 0)
        # 59 s later, as if the file had been stored then.
        shift(front.file(PAGE) + ".ttl", -58)
        step("2 s before its end", PAGE, 0)
        shift(front.file(PAGE) + ".ttl", -3)
        time.sleep(1.1)
        step("after its end", PAGE, 1)
        left = os.stat(front.file(PAGE) + ".ttl").st_mtime - time.time()
        goals.check(left > 55, f"a new end {left:.0f} s ahead")
        step("with its new end", PAGE, 0)
        front.flush("/content/other")
        step("flushed by its `.stat` file, not expired (before 4.3.5: from cache)", PAGE, 1)
        step("the library, which no `.stat` file concerns", LIBRARY, 0)
        shift(front.file(LIBRARY) + ".ttl", -86_401)
        time.sleep(1.1)
        step("the library a day later", LIBRARY, 1)
    render.stop()
    table(("step", "path", "expected", "got"), rows)
    return goals.are_met
