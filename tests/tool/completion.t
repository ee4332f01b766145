#!/bin/bash
# What bash offers after `gradcomp`.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
# shellcheck source=packaging/completion/gradcomp.bash
. "$GRADCOMP_SRC/packaging/completion/gradcomp.bash"

# offered WORD...: for the last of the words typed
offered () {
	COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
	_gradcomp "$gradcomp" 2>/dev/null
	echo "${COMPREPLY[*]}"
}

is "the beginning of one command" "$(offered gradcomp con)" config
is "the beginning of another" "$(offered gradcomp rep)" report
is "of none" "$(offered gradcomp zz)" ""
for command in $(offered gradcomp ""); do
	[ "$command" = help ] || [ "$command" = version ] ||
		check "$command is a command" "$gradcomp" "$command" --help
done
like "all of them" " $(offered gradcomp "") " " check "
is "an option" "$(offered gradcomp list --js)" --json
is "an option of another command" "$(offered gradcomp list --dry)" ""
is "a command that is none" "$(offered gradcomp frob --)" ""
is "what a command can be told to do" "$(offered gradcomp cache "")" "list du verify gc pin unpin evict clear lease"
is "... its options" "$(offered gradcomp cache list --js)" --json
is "what can be measured" "$(offered gradcomp bench "")" "allreduce collectives reduce compressors io"
is "... the options of one" "$(offered gradcomp bench io --ep)" --epochs
is "a file is left to the shell" "$(offered gradcomp report some)" ""
like "it is made known" "$(complete -p gradcomp)" "-F _gradcomp gradcomp"
done_testing
