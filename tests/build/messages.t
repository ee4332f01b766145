#!/bin/bash
# doc/user/messages.md has messages that people meet, in the words that the code says them, each with cause and remedy.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
command -v python3 > /dev/null || skip_all 'python3 is not installed'
page=$GRADCOMP_SRC/doc/user/messages.md

check 'the messages can be read out of the code' python3 -B "$GRADCOMP_SRC/tests/build/messages.py" "$GRADCOMP_SRC"
LC_ALL=C sort -u <<< "$said" > "$tmp/said"
check 'there are many' test "$(wc -l < "$tmp/said")" -gt 100
sed -n 's/^    //p' "$page" | LC_ALL=C sort > "$tmp/explained"
is 'what is explained can be said' "$(LC_ALL=C comm -13 "$tmp/said" "$tmp/explained")" ''
is 'each once' "$(uniq -d "$tmp/explained")" ''
is 'every part has messages, a cause and a remedy' "$(awk '/^## / { if (n) print t; t = $0; n = 7 }
	/^    / && n % 2 { n -= 1 } /^\*\*Cause\.\*\* ./ { n -= 2 } /^\*\*Do\.\*\* ./ { n -= 4 } END { if (n) print t }' "$page")" ''
done_testing
