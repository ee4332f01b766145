#!/bin/bash
# time limit: 3600 s
# debian/ in roots of Debian 12 and 13: the packages are built in one, checked, and installed in
# another that has nothing but Slurm beside them. There alice's job uses them, also while they are
# installed again; and removed, they leave nothing but what the site has edited. The roots are kept
# below the build folder. Arguments: the suites; without, Debian 13's alone, whose compiler is the newer one, every other day,
# and with WHOLE=yes (check-long) both, every day.
: "${GRADCOMP_SRC:=$(cd "$(dirname "$0")/../.." && pwd)}" "${GRADCOMP_BUILD:?set it to the build directory}"
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"

# Killed, the first process of the root takes all others and their mounts with it.
child=
# shellcheck disable=SC2317,SC2329 # called by tap.sh
cleanup () { [ -z "$child" ] || { kill -KILL "$child"; wait "$child"; } 2> /dev/null; }
root () {
	"$GRADCOMP_SRC/tests/distro/root" "$@" < /dev/null > "$tmp/said" 2>&1 &
	child=$!
	wait $child
	status=$?
	child=
	return $status
}
# step NAME FOLDER SCRIPT: ends well in that root
step () {
	root run "$2" bash -c "set -e
		export DEBIAN_FRONTEND=noninteractive
		printf 'exit 101\n' > /usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d
		$3"
	tap_result $? "$suite: $1" || note "$(tail -n 60 "$tmp/said")"
}

[ $# -gt 0 ] || in_part 0 2 || skip_all 'it runs every other day'
make -s -C "$GRADCOMP_BUILD" dist > "$tmp/dist.log" 2>&1 || { note "$(cat "$tmp/dist.log")"; echo 'Bail out! make dist'; exit 1; }
archive=$GRADCOMP_BUILD/gradcomp-$(cat "$GRADCOMP_SRC/VERSION").tar.gz

[ $# -gt 0 ] || set -- ${WHOLE:+bookworm} trixie
for suite; do
	build=$GRADCOMP_BUILD/distro/$suite-build site=$GRADCOMP_BUILD/distro/$suite-site
	for dir in "$build" "$site"; do
		root make "$dir" "$suite" || {
			[ $? != 3 ] || skip_all "$(cat "$tmp/said")"
			note "$(cat "$tmp/said")"
			echo 'Bail out! no root could be made'
			exit 1
		}
	done

	rm -rf --one-file-system "$build/root/usr/src/packages"
	mkdir -p "$build/root/usr/src/packages/gradcomp"
	tar -xf "$archive" -C "$build/root/usr/src/packages/gradcomp" --strip-components=1
	step 'what debian/control asks for is installed' "$build" '
		apt-get -q update
		apt-get -qy --no-install-recommends install build-essential fakeroot lintian
		cd /usr/src/packages/gradcomp && apt-get -qy --no-install-recommends build-dep ./
		apt-get clean' || continue
	step 'packages are built' "$build" "
		cd /usr/src/packages/gradcomp
		DEB_BUILD_OPTIONS='nocheck noautodbgsym parallel=$(nproc)' dpkg-buildpackage -us -uc -b" || continue
	is "$suite: the compiler warns of nothing" "$(grep '\[-W' "$tmp/said")" ''
	# Who publishes packages has an address, and a bug of Debian's to close.
	step 'lintian finds nothing' "$build" '
		cd /usr/src/packages
		lintian --allow-root --fail-on error,warning --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog,initial-upload-closes-no-bugs *.deb'
	is "$suite: the packages" "$(cd "$build/root/usr/src/packages" && printf '%s\n' *_*.deb | sed 's/_.*//' | LC_ALL=C sort | tr '\n' ' ')" \
		'gradcomp gradcomp-slurm libgradcomp-dev libgradcomp0 python3-gradcomp '

	rm -rf --one-file-system "$site/root/usr/src/packages" "$site/root/usr/src/tests"
	mkdir -p "$site/root/usr/src/packages" "$site/root/usr/src/tests"
	cp "$build/root/usr/src/packages/"*.deb "$site/root/usr/src/packages"
	tar -xf "$archive" -C "$site/root/usr/src" --wildcards --strip-components=1 '*/tests/cluster/cluster'
	step 'they are installed with Slurm' "$site" '
		apt-get -q update
		# Of a run before that was killed.
		dpkg --purge --force-all gradcomp gradcomp-slurm libgradcomp-dev libgradcomp0 python3-gradcomp || :
		rm -rf /etc/gradcomp /tmp/job
		# Slurm opens libpmix.so, which is in libpmix-dev: gradcomp-slurm recommends it.
		apt-get -qy --no-install-recommends install slurmctld slurmd slurm-client munge libpmix-dev iproute2 gcc libc6-dev pkgconf
		apt-get -qy --no-install-recommends install /usr/src/packages/*.deb
		apt-get clean' || continue
	# shellcheck disable=SC2016 # expanded in the root
	step 'the command and the Python package are of one version' "$site" '
		cd /
		[ "$(gradcomp version | head -n 1 | cut -d " " -f 2)" = "$(python3 -c "import gradcomp; print(gradcomp.version())")" ]
		man_pages=$(dpkg -L gradcomp gradcomp-slurm | grep -c /man/man)
		[ "$man_pages" -ge 3 ]'
	# The same job runs on while apt puts every file in place again.
	# shellcheck disable=SC2016 # expanded in the root
	step "alice's job, before, during and after an upgrade" "$site" '
		bed="/usr/src/tests/cluster/cluster --name packages"
		trap "$bed down" EXIT
		cd /tmp && mkdir -m 1777 -p /tmp/job
		gcc -O2 -o /tmp/job/lamb $(dpkg -L gradcomp | grep lamb.c) $(pkg-config --cflags --libs gradcomp) -lm
		$bed up --nodes 2 --cpus 2 --share /tmp/job --plugstack /etc/slurm/plugstack.conf.d/gradcomp.conf
		srun="$bed run -u alice timeout 400 srun -N2 -n4 --overcommit --mpi=pmix --gradcomp=topk:density=0.05 --gradcomp-report=/tmp/job/report.json"
		began=$(date +%s%N)
		$srun /tmp/job/lamb 100
		took=$((($(date +%s%N) - began) / 1000000))
		$srun /tmp/job/lamb $((100 * 60000 / took)) & job=$!
		sleep 2
		kill -0 $job
		apt-get -qy --reinstall --no-install-recommends install /usr/src/packages/*.deb
		kill -0 $job
		wait $job
		$srun /tmp/job/lamb 100
		gradcomp report /tmp/job/report.json'
	# shellcheck disable=SC2016 # expanded in the root
	step 'removed, they leave what was edited' "$site" '
		echo "# ours" >> /etc/gradcomp/gradcomp.conf
		apt-get -qy remove gradcomp gradcomp-slurm libgradcomp-dev libgradcomp0 python3-gradcomp
		left=$(find / -xdev \( -path /usr/src -o -path /proc -o -path /sys -o -path /run -o -path /var -o -path /tmp \) -prune -o -name "*gradcomp*" -print | sort | tr "\n" " ")
		echo "left: $left"
		[ "$left" = "/etc/gradcomp /etc/gradcomp/gradcomp.conf /etc/slurm/plugstack.conf.d/gradcomp.conf " ]
		apt-get -qy purge gradcomp gradcomp-slurm
		[ ! -e /etc/gradcomp ]'
done
done_testing
