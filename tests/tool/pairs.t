#!/bin/sh
# gradcomp list --pairs: what goes with what, and that the documentation says the same.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"

check "of the fixtures" "$gradcomp" list --pairs
like "what collectives carry" "$said" "| merged     | -    | -       | -     |"
like "what a compressor needs" "$said" "| gatherer   | yes  | -       | yes   | gathered |"
like "what it can do with instead" "$said" "| either     | yes  | -       | or    | gathered; or coded |"
like "one that no primitive here carries" "$said" "| coder      | -    | -       | yes   | coded |"
unlike "no plugin that cannot be used" "$said" "promise"

installed=$GRADCOMP_BUILD/lib/gradcomp
said=$(GRADCOMP_PLUGIN_PATH=$installed "$gradcomp" list --pairs)
like "of this build" "$said" "| none       | "
# The page has the columns of all plugins; those that this build lacks (nccl) are left out here.
documented=$(sed -n '/^| payloads/,/^$/p' "$GRADCOMP_SRC/doc/user/collectives.md" | grep .)
here=$(printf '%s\n' "$said" | sed -n 's/|//g; 1p' | cut -d' ' -f3-)
is "doc/user/collectives.md has the same table" \
	"$(printf '%s\n' "$documented" | awk -F'|' -v here=" $here " '
		NR == 1 { for (i = 2; i < NF; i++) { name = $i; gsub(/ /, "", name); keep[i] = i == 2 || index(here, " " name " ") } }
		{ line = "|"; for (i = 2; i < NF; i++) if (keep[i]) line = line $i "|"; print line }')" \
	"$(printf '%s\n' "$said" | sed -n '1,/^$/p' | grep .)"
# Every cell of the second table, against what check says.
wrong=
for compressor in $(printf '%s\n' "$said" | sed -n '/^| compressor/,$p' | sed '1,2d' | cut -d' ' -f2); do
	for collective in $(printf '%s\n' "$said" | sed -n 's/|//g; 1p' | cut -d' ' -f3-); do
		column=$(printf '%s\n' "$said" | sed -n '1p' | tr -d ' ' | tr '|' '\n' | grep -n "^$collective\$" | cut -d: -f1)
		cell=$(printf '%s\n' "$said" | sed -n '/^| compressor/,$p' | grep "^| $compressor " | tr -d ' ' | cut -d'|' -f"$column")
		GRADCOMP_PLUGIN_PATH=$installed "$gradcomp" check --compressor "$compressor" --collective "$collective" \
			>/dev/null 2>&1 && works=yes || works=-
		[ "$cell" = or ] && cell=yes
		[ "$cell" = "$works" ] || wrong="$wrong $compressor+$collective"
	done
done
is "every cell is what check says" "$wrong" ""
"$gradcomp" list --pairs sample >/dev/null 2>&1
is "usage error: --pairs with a name" $? 2
done_testing
