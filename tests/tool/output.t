#!/bin/sh
# The command as a whole: usage, exit status, output that cannot be written.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"

check "help" "$gradcomp" help
like "lists the commands" "$said" "  report       the report of a job as a table"
check "--help" "$gradcomp" --help
check "version" "$gradcomp" version
is "prints one" "$said" "gradcomp $(cat "$GRADCOMP_SRC/VERSION")"

"$gradcomp" >"$tmp/out" 2>"$tmp/err"
is "no command: status" $? 2
is "no command: nothing on stdout" "$(cat "$tmp/out")" ""
"$gradcomp" lsit >"$tmp/out" 2>"$tmp/err"
is "unknown command: status" $? 2
like "unknown command: named" "$(cat "$tmp/err")" "gradcomp: unknown command 'lsit' (did you mean 'list'?)"

commands=$("$gradcomp" help | sed -n 's/^  \([a-z-]*\) .*/\1/p')
for command in $commands; do
	case $command in help | version) continue ;; esac
	"$gradcomp" "$command" --help >"$tmp/out" 2>"$tmp/err"
	is "$command --help: status" $? 0
	like "$command --help: says how to use it" "$(cat "$tmp/out")" "usage: gradcomp $command"
	is "$command --help: nothing on stderr" "$(cat "$tmp/err")" ""
done

for command in "list" "list --json" "config" "config --json" "help-option" "help" "version"; do
	# shellcheck disable=SC2086
	"$gradcomp" $command >/dev/full 2>"$tmp/err"
	is "$command to a full device: status" $? 1
	like "$command to a full device: says so" "$(cat "$tmp/err")" "gradcomp: cannot write the output: No space left on device"
done
"$gradcomp" list >&- 2>"$tmp/err"
is "closed stdout: status" $? 1
like "closed stdout: says so" "$(cat "$tmp/err")" "gradcomp: cannot write the output"
"$gradcomp" check --compressor sample --collective both >&- 2>"$tmp/err"
is "a closed stdout does not matter to what prints nothing" $? 0
"$gradcomp" list 2>&- >"$tmp/out"
is "closed stderr does no harm" $? 0
is "nor to what is printed" "$(grep -c '^other compressors' "$tmp/out")" 1

# A reader that leaves: the signal where it acts, a quiet failure where it is ignored.
mkfifo "$tmp/pipe"
leave () {
	: <"$tmp/pipe" &
	# shellcheck disable=SC2094
	exec 3>"$tmp/pipe"
	wait $!
	"$@" >&3 2>"$tmp/err"
	left=$?
	exec 3>&-
}
leave "$gradcomp" list
is "reader gone: ended by SIGPIPE" "$left" 141
leave env --ignore-signal=PIPE "$gradcomp" list
is "reader gone, SIGPIPE ignored: status" "$left" 1
is "reader gone, SIGPIPE ignored: quiet" "$(cat "$tmp/err")" ""
done_testing
