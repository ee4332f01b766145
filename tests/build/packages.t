#!/bin/bash
# What packages are made of: versions that agree, an RPM of the archive, modulefiles,
# units and completion that the programs they are for accept. tests/distro/packages.t is Debian's part.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
cd "$GRADCOMP_SRC" || exit 1
version=$(cat VERSION)
unset CC CFLAGS CPPFLAGS LDFLAGS LIBS AR NVCC CUDA_ARCHS PKG_CONFIG DESTDIR 2>/dev/null

is 'debian/changelog is of this version' "$(sed -n '1s/^gradcomp (\([^-]*\)-.*/\1/p' debian/changelog)" "$version"
is 'so is the spec file' "$(sed -n 's/^Version: *//p' packaging/rpm/gradcomp.spec)" "$version"
like "... Spack's recipe" "$(cat packaging/spack/package.py)" "version(\"$version\")"
check "... and EasyBuild's" test -e "packaging/easybuild/gradcomp-$version-GCCcore-13.3.0.eb"
for recipe in packaging/spack/package.py packaging/easybuild/*.eb; do
	check "$recipe is Python" python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$recipe"
done

# Spack is not there: its names are stubs, and configure knows every option that the recipes give.
cat > "$tmp/recipes.py" <<'EOF'
import glob, re, sys, types

asked, options = [], []


class Package:
    pass


class CudaPackage:
    cuda_arch_values = ("80", "90")


class Spec:
    def __contains__(self, variant):
        return self.all


spack = {name: lambda *a, **k: None for name in ("license", "version", "variant", "make")}
spack.update(depends_on=lambda name, **k: asked.append(name), Executable=lambda name: lambda *a: options.extend(a),
             EnvironmentModifications=object, join_path=lambda *a: "/".join(a))
for name, inside in (("spack.package", spack), ("spack_repo.builtin.build_systems.cuda", {"CudaPackage": CudaPackage}),
                     ("spack_repo.builtin.build_systems.generic", {"Package": Package})):
    parts = name.split(".")
    for i in range(len(parts)):
        sys.modules.setdefault(".".join(parts[:i + 1]), types.ModuleType(parts[i]))
    vars(sys.modules[name]).update(inside)
recipe = {}
exec(open("packaging/spack/package.py").read(), recipe)
for Spec.all in (True, False):
    recipe["Gradcomp"]().install(Spec(), "/prefix")
assert "libinih" in asked and "inih" not in asked, asked
easy = {"SOURCE_TAR_GZ": "", "SHLIB_EXT": "so"}
exec(open(glob.glob("packaging/easybuild/*.eb")[0]).read(), easy)
options += easy["configopts"].split()
known = set(re.findall(r"--with(?:out)?-([a-z0-9]+)", open(sys.argv[1]).read()))
unknown = [o for o in options if not o.startswith("--prefix=") and re.sub("^--with(out)?-", "", o) not in known]
assert not unknown, unknown
EOF
./configure --help > "$tmp/help"
check 'recipes of Spack and EasyBuild run, with options that configure knows' python3 "$tmp/recipes.py" "$tmp/help"
if command -v eb > /dev/null; then
	check 'eb -D' eb -D --allow-use-as-root-and-accept-consequences packaging/easybuild/*.eb
else
	skip 'eb -D' 'EasyBuild is not installed'
fi

# ---- RPM

top=$tmp/rpm
if ! in_part 1 2; then
	skip 'RPMs' 'they are made every other day'
elif ! command -v rpmbuild > /dev/null; then
	skip 'RPMs' 'rpmbuild is not installed (package rpm)'
elif ! grep -q '^HAVE_SLURM = yes' "$GRADCOMP_BUILD/config.mk"; then
	skip 'RPMs' 'no Slurm in this build'
else
	check 'make dist' make -s -C "$GRADCOMP_BUILD" dist
	# Without its dependencies, which have RPM's names, and without what takes time.
	check 'rpmbuild' rpmbuild -tb --quiet --nodeps --nocheck --define "_topdir $top" --define 'optflags -O0 -g0' \
		--define '_libdir /usr/lib64' --define 'debug_package %{nil}' "$GRADCOMP_BUILD/gradcomp-$version.tar.gz"
	slurm=$(sed -n 's/^#define GRADCOMP_SLURM_VERSION "\([0-9]*\.[0-9]*\)\..*/\1/p' "$GRADCOMP_BUILD/gradcomp_config.h")
	is 'the packages' "$(cd "$top"/RPMS/* && printf '%s\n' *.rpm | sed "s/-$version-.*//" | LC_ALL=C sort | tr '\n' ' ')" \
		"gradcomp gradcomp-devel gradcomp-libs gradcomp-slurm$slurm python3-gradcomp "
	files () { rpm -qlp "$top"/RPMS/*/"$1-$version"-*.rpm | grep -v -e /.build-id -e '/python/gradcomp/' -e /share/doc/; }
	is 'of the plugin' "$(files "gradcomp-slurm$slurm" | tr '\n' ' ')" "/etc/slurm/plugstack.conf.d /etc/slurm/plugstack.conf.d/gradcomp.conf \
/usr/lib/systemd/system/gradcomp-cache-gc.service /usr/lib/systemd/system/gradcomp-cache-gc.timer /usr/lib64/slurm/spank_gradcomp.so \
/usr/share/man/man8/spank_gradcomp.8 "
	like '... for this release of Slurm' "$(rpm -qp --requires "$top"/RPMS/*/"gradcomp-slurm$slurm"-*.rpm)" "slurm >= $slurm"
	like 'of the library' "$(files gradcomp-libs)" /usr/lib64/gradcomp/collectives/ring.so
	like 'its manual page' "$(files gradcomp-devel)" /usr/share/man/man3/gradcomp.3
	like 'of the package for developers' "$(files gradcomp-devel)" /usr/lib64/cmake/gradcomp/gradcomp-config.cmake
	like 'the SDK' "$(files gradcomp-devel)" /usr/lib64/libgradcomp-sdk.a
	like '... with its headers' "$(files gradcomp-devel)" /usr/include/gradcomp/sdk/lowrank.h
	like 'of Python' "$(files python3-gradcomp)" /usr/lib64/gradcomp/python/sitecustomize.py
	like 'of the command' "$(files gradcomp)" /usr/lib/tmpfiles.d/gradcomp.conf
	is 'a site keeps its settings' "$(rpm -qcp "$top"/RPMS/*/"gradcomp-$version"-*.rpm)" /etc/gradcomp/gradcomp.conf
	chmod -R u+w "$top"
fi


# ---- installed

# This build, below a folder of the test's: what it has compiled is tested elsewhere.
set_in () { sed -n "s/^$1 = //p" "$GRADCOMP_BUILD/config.mk"; }
stage=$tmp/stage bin=$(set_in bindir) units=$tmp/stage$(set_in systemdunitdir) completion=$tmp/stage$(set_in zshcompletiondir)/_gradcomp
check 'make install' make -s -C "$GRADCOMP_BUILD" install DESTDIR="$stage"

modules=$stage$(set_in datadir)/gradcomp/modulefiles/gradcomp
for module in "$modules/$version" "$modules/$version.lua"; do
	is "${module##*/}: nothing is left to fill in" "$(grep -c '@[a-z]*@' "$module")" 0
	# Every folder it names is there.
	while read -r folder; do
		check "${module##*/}: $folder" test -d "$stage$folder"
	done < <(sed -n 's/^prepend[-_]path[( ]*"*[A-Z_]*"*,* *"*\([^")]*\).*/\1/p' "$module")
done
if command -v tclsh > /dev/null; then
	cat > "$tmp/module.tcl" <<-'EOF'
		foreach name {module-whatis conflict} { proc $name args {} }
		proc prepend-path {name value} { puts "$name=$value" }
		source [lindex $argv 0]
	EOF
	like 'Tcl reads it' "$(tclsh "$tmp/module.tcl" "$modules/$version")" "PATH=$bin"
else
	skip 'Tcl reads it' 'tclsh is not installed'
fi

if [ ! -e "$units" ]; then
	skip 'units' 'no Slurm in this build'
elif command -v systemd-analyze > /dev/null; then
	check 'systemd takes the units' systemd-analyze verify --man=no "$units/gradcomp-cache-gc.service" "$units/gradcomp-cache-gc.timer"
else
	skip 'systemd takes the units' 'systemd-analyze is not installed'
fi
if [ -e "$units" ]; then
	# Its command, with a squeue of the test's own: what Slurm knows is handed on, and without an answer nothing runs.
	command=$(sed -n "s|^ExecStart=/bin/sh -c '\(.*\)'\$|\1|p" "$units/gradcomp-cache-gc.service" | sed 's/\$\$/$/g; s/%%/%/g' |
		sed "s|exec $bin/gradcomp|echo ran|")
	mkdir "$tmp/slurm"
	printf '#!/bin/sh\nprintf "7\\n9\\n"\n' > "$tmp/slurm/squeue" && chmod 755 "$tmp/slurm/squeue"
	is 'the jobs of the node are spared' "$(PATH=$tmp/slurm:$PATH sh -c "$command" | tr '\n' ' ')" 'ran cache gc --all-users --live-jobs 7 9 '
	printf '#!/bin/sh\nexit 1\n' > "$tmp/slurm/squeue"
	is 'without an answer of Slurm nothing is removed' "$(PATH=$tmp/slurm:$PATH sh -c "$command")" ''
	printf '#!/bin/sh\n' > "$tmp/slurm/squeue"
	install -m 755 "$tmp/slurm/squeue" "$tmp/slurm/hostname"
	is 'nor on a node that has no name: squeue -w "" prints nothing and is content' "$(PATH=$tmp/slurm:$PATH sh -c "$command" 2> /dev/null)" ''
fi

if command -v zsh > /dev/null; then
	check 'zsh takes the completion' zsh -n "$completion"
	# What it would offer, by functions of the test's own in place of zsh's.
	offered () {
		zsh -f -c '
			words=("$@") CURRENT=$#
			_describe () { print -rl -- ${found%%:*} }
			compadd () { shift; print -rl -- $@ }
			_files () { print FILES }
			source '"$completion" zsh "$stage$bin/gradcomp" "$@" | sort | tr '\n' ' '
	}
	like 'commands' " $(offered '')" ' config '
	like 'what a command can be told to do' " $(offered cache '')" ' evict '
	like 'options' " $(offered list --)" ' --json '
	is 'a file is left to the shell' "$(offered report some '')" 'FILES '
else
	skip 'zsh takes the completion' 'zsh is not installed'
fi
done_testing
