#!/usr/bin/python3
"""Prints links of the documents that lead nowhere or stand on two lines, and documents to which no link leads from the README. Runs in the source folder."""

import glob
import os
import re

LINK = re.compile(r"\]\(([^) ]+)\)")


def prose(path):
    """The lines of a document without code."""
    fenced = False
    with open(path, encoding="utf-8") as f:
        for line in f:
            if line.startswith("```"):
                fenced = not fenced
            elif not fenced and not line.startswith("    "):
                yield line


def anchors(path):
    found = {}
    for line in prose(path):
        if line.startswith("#"):
            word = re.sub(r"[^\w -]", "", line.lstrip("#").strip().lower()).replace(" ", "-")
            found[word] = found.get(word, -1) + 1
    return {word + (f"-{i}" if i else "") for word, n in found.items() for i in range(n + 1)}


pages = sorted(glob.glob("*.md") + glob.glob("doc/**/*.md", recursive=True))
leads = {}
for page in pages:
    leads[page] = set()
    for line in prose(page):
        line = re.sub(r"`[^`]*`", "", line)
        if "](" in re.sub(r"\[[^][]*\]\([^) ]+\)", "", line):  # packaging/installed-links reads lines
            print(f"{page}: a link over two lines: {line.strip()}")
        for link in LINK.findall(line):
            path, _, anchor = link.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
            if re.match("https?:", link):
                continue
            if not os.path.exists(target) or (anchor and anchor not in anchors(target)):
                print(f"{page}: {link}")
            leads[page].add(target)

reached, new = set(), {"README.md"}
while new:
    reached |= new
    new = {t for page in new for t in leads.get(page, ())} - reached
for page in pages:
    if page not in reached:
        print(f"no link leads to {page}")
