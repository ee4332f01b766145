# shellcheck shell=bash
# Completion of the gradcomp command. What there is to complete is asked of the
# command itself, so this file never falls behind.
_gradcomp ()
{
	local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} verb=${COMP_WORDS[2]} text
	COMPREPLY=()
	if [ "$COMP_CWORD" = 1 ]; then
		text=$("$1" help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
	elif [[ $word == -* ]]; then
		text=$({
			"$1" "$command" --help
			if [[ $COMP_CWORD != 2 && $verb == [a-z]* ]]; then "$1" "$command" "$verb" --help; fi
		} </dev/null 2>/dev/null | grep -o -e '--[a-z][a-z-]*' | sort -u)
	elif [ "$COMP_CWORD" = 2 ] && text=$("$1" "$command" --help </dev/null 2>/dev/null |
		sed -n "1s/^usage: gradcomp [a-z-]* {\([a-z|-]*\)}.*/\1/p
			s/^\(usage:\|      \) gradcomp $command \([a-z][a-z]*\) .*/\2/p" | tr '|' ' ') && [ -n "$text" ]; then
		:
	else
		compopt -o default 2>/dev/null
		return
	fi
	mapfile -t COMPREPLY < <(compgen -W "$text" -- "$word")
}
complete -F _gradcomp gradcomp
