"""E7  The order of publishers. Two renders; the second gets new content 5 s after the first. The first one's flush has the
page fetched again. How long do visitors get old content after the flush? Once without and once with numbers of what the
renders have reached (`X-Tympan-Seq`).
"""
import os
import time

from .harness import Front, Goals, Render, Visitor, table

NEEDS_JMETER = False
PAGE = "/content/site/en.html"
LAG = 5
WATCHED = 30


class Site:
    """Content that arrives at a render some time after it was published."""

    def __init__(self, lag):
        self.lag, self.published, self.is_counting = lag, None, False

    def answer(self, _path):
        is_new = self.published is not None and time.monotonic() >= self.published + self.lag
        headers = {"X-Tympan-Seq": "2" if is_new else "1"} if self.is_counting else {}
        return "new" if is_new else "old", headers


def run_race(arguments, number, is_counting):
    """Returns for how long visitors got the old page, at most `WATCHED` seconds, and how often it was drawn."""
    sites = [Site(0), Site(LAG)]
    renders = [Render(site.answer) for site in sites]
    for site in sites:
        site.is_counting = is_counting
    home = os.path.join(arguments.folder, f"race-{is_counting}-{number}")
    with Front(arguments.program, home, renders) as front, Visitor(front.at) as visitor:
        visitor.ask(PAGE)
        # Which render is asked next is the balancer's business: asking for other pages in turn makes it differ.
        for other in range(number):
            visitor.ask(f"/content/site/p{other}.html")
        for render in renders:
            render.forget()
        begun = time.monotonic()
        for site in sites:
            site.published = begun
        headers = {"X-Tympan-Seq": "2"} if is_counting else {}
        front.flush("/content/site/en", headers, [PAGE])
        last_old = begun
        while time.monotonic() < begun + WATCHED:
            _, body, _ = visitor.ask(PAGE)
            if body == "old":
                last_old = time.monotonic()
            elif time.monotonic() > last_old + 2 * LAG:
                break
            time.sleep(0.05)
        drawn = sum(render.count(lambda path: path == PAGE) for render in renders)
    for render in renders:
        render.stop()
    return last_old - begun, drawn


def run(arguments):
    goals, rows = Goals(), []
    for is_counting in (False, True):
        races = [run_race(arguments, number, is_counting) for number in range(6)]
        old = sorted(seconds for seconds, _ in races)
        lasting = sum(seconds > WATCHED - 1 for seconds in old)
        name = "with numbers" if is_counting else "without numbers"
        rows.append((name, len(races), lasting, old[len(old) // 2], old[-1], sum(drawn for _, drawn in races)))
        if is_counting:
            goals.check(lasting == 0, f"{name}: the old page outlives the flush in {lasting} of {len(races)} races")
            goals.check(old[-1] < LAG + 3, f"{name}: the old page is served for {old[-1]:.1f} s at most")
    table(("re-fetch", "races", "old page stays", "old for s, median", "at most", "renders"), rows)
    print(f"a page that is still old after {WATCHED} s stays so until the next flush")
    return goals.are_met
