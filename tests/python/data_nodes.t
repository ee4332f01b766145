#!/usr/bin/python3
"""gradcomp.data between nodes: ranks of different users share no memory and no files of
each other, and exchange values over TCP as nodes do."""

import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tap import BUILD, SOURCE, done_testing, errors, need_gloo, need_library, ok, skip_all  # noqa: E402

need_gloo()
need_library()
if os.geteuid() != 0:
    skip_all("only root can start ranks of several users")
for path in (os.path.join(SOURCE, "python/gradcomp/data.py"), os.path.join(BUILD, "lib/libgradcomp.so")):
    if subprocess.run(["cat", path], user=65534, capture_output=True).returncode:
        skip_all(f"{path} is not for everybody to read")
from loading import end_of_a_rank, run, shards, three_epochs, tree  # noqa: E402

for mode, path, users in (("plain:0", tree, (0, 0, 65534, 65534)), ("plain:2", shards, (0, 65534, 65533)),
                          ("loader:1", tree, (0, 65534, 0, 65534)), ("distributed:follow", tree, (0, 65534))):
    lines = three_epochs(len(users), mode, path, users=users)
    if lines:
        stats = [line["stats"] for line in lines]
        ok(all(s["remote"] > 0 and s["remote_bytes"] > 0 for s in stats),
           f"{mode}: later epochs had values of other nodes", stats)
lines, result, _ = run(2, "interrupted", tree, users=(0, 65534))
if ok([s for s, _, _ in result] == [0, 0], "Ctrl-C while values are loaded again does not end the job", errors(result)):
    said = [line["interrupted"] for line in lines]
    # The second loads again where that was the faster way so far, the first when the other is late.
    ok(all(d["caught"] == d["raised"] for d in said) and said[0]["raised"],
       "and is the program's, though the value could be fetched", said)
end_of_a_rank("killed", users=(0, 65534, 65534))
done_testing()
