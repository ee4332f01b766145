#!/bin/bash
# What quickstart says before it installs and while it builds. apt-get stands in for itself where it would
# install: its figures are those of the apt that is here, for a package that is not installed.
# shellcheck source=tests/support/tap.sh disable=SC1091,SC2154,SC2016
. "$GRADCOMP_SRC/tests/support/tap.sh"
[ "$(id -u)" = 0 ] || skip_all 'quickstart wants root'
command -v apt-get > /dev/null || skip_all 'there is no apt here'

tree=$tmp/tree bin=$tmp/bin
mkdir -p "$tree/tests/cluster" "$bin"
printf '#!/bin/sh\n' > "$tree/tests/cluster/cluster"
# A build of forty steps, the second half of which waits until somebody has been told how far it is.
cat > "$tree/configure" << 'EOF'
#!/bin/sh
{
	echo 'all: $(foreach n,$(shell seq 40),o/$n)'
	printf 'o/%%:\n\t@printf "  %%-5s %%s\\n" CC $@\n\t@sh ../step $* && mkdir -p o && touch $@\n'
	echo 'check-slow:; @echo checked'
} > Makefile
EOF
echo 'for i in $(seq 600); do [ "$1" -gt 20 ] || exit 0; grep -q "of 40" ../../said && exit 0; sleep 0.1; done; exit 1' > "$tree/step"
chmod +x "$tree/configure" "$tree/tests/cluster/cluster"
# PATH is set by quickstart: what stands in for programs is a function of its shell.
real=$(command -v apt-get)
sed '/^"run_\$command"/i . "$top/stand-in"' "$GRADCOMP_SRC/quickstart" > "$tree/quickstart"
chmod +x "$tree/quickstart"
cat > "$tree/stand-in" << EOF
dpkg-query() { case \$* in *gradcomp-none*|*cmake*) [ -n "\${all_there-}" ] && echo installed || echo not-installed ;; *) echo installed ;; esac; }
apt-get() {
	case \$* in
	*--assume-no*) cat "$tmp/plan" ;;
	install*) echo "Setting up cmake (3.25) ..."; echo "\$*" > "$tmp/installed" ;;
	esac
}
EOF
# As apt itself says it: the words, and the figures of a real package where there is one.
LC_ALL=C "$real" install --assume-no --no-install-recommends gnuplot-nox > "$tmp/real" 2>&1
printf '%s\n' 'Reading package lists...' '0 upgraded, 456 newly installed, 0 to remove and 3 not upgraded.' 'Need to get 378 MB of archives.' \
	'After this operation, 1,788 MB of additional disk space will be used.' 'Do you want to continue? [Y/n] N' 'Abort.' > "$tmp/plan"
words () { sed -n '/newly installed,/p; /^Need to get/p; /^After this/p' "$1" | tr -d '0-9,./' | sed 's/ [kMG]\{0,1\}B/ B/g; s/ B B/ B/; s/  */ /g' | tr '\n' '|'; }
if grep -q 'additional disk space' "$tmp/real"; then
	is "the words of apt are as they are taken" "$(words "$tmp/real")" "$(words "$tmp/plan")"
else
	skip 'the words of apt are as they are taken' 'apt has no list of packages'
fi

script -qefc "$tree/quickstart check slow" /dev/null < /dev/null > "$tmp/said" 2>&1
is 'it ends well' $? 0
said=$(tr '\r' '\n' < "$tmp/said")
like 'how much will be installed' "$said" 'quickstart: installing 456 packages: 378 MB to download, 1,788 MB on the disk'
like 'how much will be built' "$said" 'quickstart: building: 40 steps on '
like 'and how far it is' "$(grep -oE 'steps built: [0-9]+ of 40' <<< "$said" | head -n 1)" ' of 40'
like 'then what was asked for' "$said" 'checked'
like 'apt was asked for what is missing' "$(cat "$tmp/installed")" 'install -y --no-install-recommends cmake'
said=$(all_there=1 "$tree/quickstart" check slow 2>&1)
unlike 'what is built is not announced again' "$said" 'building'
unlike 'nor what is installed' "$said" 'installing'
done_testing
