#!/usr/bin/python3
"""messages.py SOURCE: the messages of the rooms that doc/user/messages.md is about, one a line, with `...` for what
differs, N for the end of a range. Left out: those of memory, parts of others, and what was said elsewhere and is
handed on."""

import glob
import os
import re
import sys

ROOMS = ["api", "bootstrap", "security", "plugin", "device", "transport", "base", "config", "operators", "job", "schedule", "trace", "coder",
         "reducer", "kinds", "step", "survivors", "cost"]
FOLDERS = [f"runtime/{room}" for room in ROOMS] + ["io"]
PARTS = {"look at", "read the symbolic link"}  # of "cannot ... ..."
CALL = re.compile(r'\b(?:error_set|error_errno|\w*fail\w*)\(\s*[\w>.&()-]+,\s*[^;"]*?,\s*((?:"(?:[^"\\]|\\.)*"\s*(?:PRI\w+\s*)?)+)')
CONVERSION = re.compile(r"%[-#0-9.*]*(?:hh|h|ll|l|z)?[a-zA-Z]")


def messages(source):
    for folder in FOLDERS:
        for path in sorted(glob.glob(os.path.join(source, folder, "**/*.c"), recursive=True)):
            with open(path, encoding="utf-8") as f:
                for literals in CALL.findall(f.read()):
                    literals = re.sub(r"PRI\w+", '"u"', literals)
                    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')
                    own = CONVERSION.sub("", text)
                    text = re.sub(f"{CONVERSION.pattern}\\.\\.{CONVERSION.pattern}", "N..N", text)
                    text = re.sub(f"\\.\\.{CONVERSION.pattern}", "..N", text)
                    if len(re.findall("[a-zA-Z]", own)) >= 6 and not re.search("(no|out of) memory", text) and text not in PARTS:
                        yield re.sub(r"(\.\.\.){2,}", "...", CONVERSION.sub("...", text)).replace("%%", "%").strip()


if __name__ == "__main__":
    for line in sorted(set(messages(sys.argv[1]))):
        print(line)
