#!/bin/sh
# bench/published: what it says of answers and errors, of a table that is made up. Nothing is predicted.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
cat >"$tmp/skill.py" <<'EOF2'
import importlib.machinery, importlib.util, sys
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("published", sys.argv[1])
published = importlib.util.module_from_spec(importlib.util.spec_from_loader("published", loader))
loader.exec_module(published)


def group(size, *rows, network="net"):
    return [{"network": network, "model": "m", "gpus": size, "method": method, "measured_s": measured, "predicted_s": predicted, "fitted": size == 4}
            for method, measured, predicted in rows]


# On 4 all was fitted. A is the quickest on 8 and 16, where the planner has it once; on 32 it is B, which the planner has.
table = [*group(4, ("A", 9, 9), ("B", 1, 1)), *group(8, ("A", 1.0, 1.0), ("B", 2.0, 3.0)), *group(16, ("A", 1.0, 1.2), ("B", 1.5, 1.1)),
         *group(32, ("A", 3.0, 3.0), ("B", 2.0, 2.0))]
one = published.skill("made up", table)
other = published.skill("one method", group(8, ("A", 1.0, 1.5)))
assert len(one["answers"]) == 3 and {a["constant"] for a in one["answers"]} == {"A"}, one
assert published.winners(table) == (2, 3)
assert (published.right(one["answers"], "planner"), published.right(one["answers"], "constant")) == (2, 2)
differ = [a for a in one["answers"] if a["planner"] != a["constant"]]
assert [(a["size"], a["planner"], a["quickest"], a["planner_loss_s"], a["constant_loss_s"]) for a in differ] == [(16, "B", "A", 0.5, 0.0), (32, "B", "B", 0.0, 1.0)], differ
assert one["cells"] == 6 and abs(one["worst_error"] - 0.5) < 1e-12 and abs(one["median_error"] - 0.1) < 1e-12, one
assert not other["answers"] and other["cells"] == 1, other
published.show_skill([one, other])
EOF2
python3 "$tmp/skill.py" "$GRADCOMP_SRC/bench/published" >"$tmp/out" 2>"$tmp/err"
is 'answers of the planner and a constant one, what they lose, and errors by table' "$? $(cat "$tmp/err")" '0 '
is 'a line of a table' "$(grep '^made up  *3' "$tmp/out" | tr -s ' ')" 'made up 3 2 2 2 1 1 16.67 50.0 166.67 16.67 50.0 333.33'
like 'each group in which they differ' "$(cat "$tmp/out")" 'made up, net, m on 32: planner B, 0.0 ms lost; constant A, 1000.0 ms; the quickest is B'
unlike 'and no other' "$(cat "$tmp/out")" 'on 8:'
done_testing
