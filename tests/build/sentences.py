#!/usr/bin/python3
"""sentences.py FILE...: the mean length of the sentences of documents, in words: a line for each file, then that of all. Headings, tables and
code do not count; an item of a list ends a sentence."""

import re
import sys


def paragraphs(path):
    text, fenced = "", False
    with open(path, encoding="utf-8") as f:
        for line in f:
            fenced ^= line.startswith("```")
            item = re.match(r"\s*([-*]|\d+\.) ", line)
            if fenced or line.startswith(("```", "|", "#", "![")) or not line.strip() or (line.startswith("    ") and not item):
                text += "\n"
            elif item:
                text += "\n" + line[item.end():].strip() + " "
            else:
                text += line.strip() + " "
    return re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", text)).split("\n")


def lengths(path):
    for paragraph in paragraphs(path):
        for sentence in re.split(r"(?<=[.!?:])[\"*)\]]*\s+(?=[^a-z ])", paragraph):
            words = sum(1 for word in sentence.split() if re.search(r"\w", word))
            if words > 1:
                yield words


if __name__ == "__main__":
    everything = []
    for name in sys.argv[1:]:
        own = list(lengths(name))
        everything += own
        print(f"{sum(own) / max(1, len(own)):.1f} {name}")
    print(f"{sum(everything) / max(1, len(everything)):.1f} all")
