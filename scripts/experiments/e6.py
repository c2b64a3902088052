"""E6  The optimizer's finding. `tympan dispatcher check` reads the configuration of the source's experiments, in which a
rule stands outside `/filter`, and names it with file and line; then all other configurations of the corpus.
"""
import os
import re
import subprocess

from .harness import Goals, table

NEEDS_JMETER = False


def check(program, file, root):
    result = subprocess.run(
        [program, "dispatcher", "check", file, "--root", root], capture_output=True, text=True, timeout=120)
    findings = [line for line in result.stdout.splitlines() if re.match(r".+:\d+:\d+: ", line)]
    return result.returncode, findings


def run(arguments):
    goals, rows = Goals(), []
    corpus = os.path.join(arguments.shared, "fixtures", "dispatcher")
    for folder in sorted(os.listdir(corpus)):
        root = os.path.join(corpus, folder)
        if not os.path.isdir(root):
            continue
        files = errors = count = refused = 0
        for path, _, names in os.walk(root):
            for name in names:
                if not name.endswith((".any", ".farm")):
                    continue
                code, findings = check(arguments.program, os.path.join(path, name), root)
                files, count = files + 1, count + len(findings)
                refused += code == 1
                errors += code not in (0, 1)
                if folder.endswith("aem-dispatcher-experiments"):
                    for finding in findings:
                        print(finding.replace(corpus + os.sep, ""))
                    misplaced = [finding for finding in findings if "'/0003'" in finding]
                    goals.check(len(misplaced) == 1, f"{name}: the misplaced rule is found {len(misplaced)} times")
        rows.append((folder, files, refused, count, errors))
        goals.check(errors == 0, f"{folder}: every file is read")
    table(("configurations", "files", "refused", "findings", "failures"), rows)
    print("Adobe's optimizer is not published as a package, so its findings are not compared")
    return goals.are_met
