#!/usr/bin/env python3
"""Counts the rows of docs/sources/*.md by state and prints the counts.

Usage: scripts/count_sources.py [--write]

With --write the tables of counts at the heads of the files are written anew. Exit code: 0 they are right, 1 they were not.
"""
import pathlib
import re
import sys

STATES = ["works", "partly", "differs", "missing", "does not apply"]
FOLDER = pathlib.Path(__file__).resolve().parent.parent / "docs/sources"
TABLE = re.compile(r"\| state \| rows \|\n\|---\|---\|\n(?:\|[^\n]*\|\n)+")


def cells(line):
    """Splits a row at bars that stand neither in code nor behind a backslash."""
    parts, is_code, before = [""], False, ""
    for character in line.strip()[1:-1]:
        if character == "|" and not is_code and before != "\\":
            parts.append("")
        else:
            parts[-1] += character
        is_code ^= character == "`"
        before = character
    return [part.strip() for part in parts]


def main():
    is_right = True
    for file in sorted(FOLDER.glob("*.md")):
        text = file.read_text()
        states = [cells(line)[4] for line in text.splitlines() if re.match(r"\| [A-Z]-\d{3} \|", line)]
        if not states:
            continue
        counts = {state: states.count(state) for state in STATES} | {"all": len(states)}
        table = "| state | rows |\n|---|---|\n" + "".join(f"| {state} | {count} |\n" for state, count in counts.items())
        print(file.name, counts, *sorted(set(states) - set(STATES)))
        new = TABLE.sub(table, text, count=1)
        is_right &= new == text and set(states) <= set(STATES)
        if "--write" in sys.argv:
            file.write_text(new)
    return 0 if is_right else 1


sys.exit(main())
