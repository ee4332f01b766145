#!/bin/bash
# time limit: 1200 s
# A wheel: made, installed in a virtual environment, moved, used for training; beside an installation
# of another version; removed.
# shellcheck source=tests/support/tap.sh
. "$GRADCOMP_SRC/tests/support/tap.sh"
unset CC CFLAGS CPPFLAGS LDFLAGS LIBS AR NVCC CUDA_ARCHS PKG_CONFIG DESTDIR PYTHONPATH VIRTUAL_ENV SOURCE_DATE_EPOCH
for name in $(compgen -e | grep -E '^(GRADCOMP|SLURM|PMIX)_?' | grep -vE '^GRADCOMP_(SRC|BUILD)$'); do unset "$name"; done
# Nothing is fetched.
export PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export GRADCOMP_CONF=$tmp/none.conf
: > "$GRADCOMP_CONF"
chmod 755 "$tmp"

python=/usr/bin/python3
version=$(cat "$GRADCOMP_SRC/VERSION")
command -v objdump > /dev/null || skip_all 'objdump is not installed'
$python -c 'import ensurepip' 2> /dev/null || skip_all "$python cannot make virtual environments (Debian: python3-venv)"

mkdir "$tmp/build"
cd "$tmp/build" || exit 1
check 'configure' "$GRADCOMP_SRC/configure" --without-cuda --without-nccl --without-verbs --without-nfs
check 'make wheel' timeout "$(scaled 600)" make -j2 wheel WHEEL_ARGS=CFLAGS=-O0
wheel=$(ls "gradcomp-$version"-py3-none-*.whl)
is 'one wheel' "$(ls ./*.whl)" "./$wheel"
like 'its name has the platform' "$wheel" "linux"
unpacked () { $python -m zipfile "$@"; }
check 'it can be unpacked' unpacked -e "$wheel" "$tmp/unpacked"
is 'nothing of this build is named in it' \
	"$(grep -rlF -e "$tmp" -e "$GRADCOMP_SRC" "$tmp/unpacked" | sed "s|^$tmp/unpacked/||")" ''
for file in lib/libgradcomp.so.0 bin/gradcomp; do
	needed=$(objdump -p "$tmp/unpacked/gradcomp/$file" | awk '$1 == "NEEDED" { print $2 }')
	case $wheel in
	*manylinux*) is "$file needs the C library alone" "$(grep -vE '^(lib(c|m|dl|rt|pthread)\.so|ld-linux)' <<< "$needed")" '' ;;
	*) skip "$file needs the C library alone" 'a library has no archive here' ;;
	esac
done
first=$(sha256sum < "$wheel")
check 'make wheel again' make wheel WHEEL_ARGS=CFLAGS=-O0
is '... is the same' "$(sha256sum < "$wheel")" "$first"

# debian13.t installs it there.
rm -rf "$GRADCOMP_BUILD/tests/wheel.new" "$GRADCOMP_BUILD/tests/wheel"
mkdir -p "$GRADCOMP_BUILD/tests/wheel.new" && cp "$wheel" "$GRADCOMP_BUILD/tests/wheel.new" &&
	mv "$GRADCOMP_BUILD/tests/wheel.new" "$GRADCOMP_BUILD/tests/wheel" || exit 1

# ---- in a virtual environment

env=$tmp/env
check 'a virtual environment' $python -m venv --system-site-packages "$env"
check "pip knows the source folder's metadata" timeout "$(scaled 120)" "$env/bin/pip" install --dry-run --no-deps "$GRADCOMP_SRC"
like '... and would install this version' "$said" "gradcomp-$version"
(cd "$env" && find . | sort) > "$tmp/before"
check 'pip install' timeout "$(scaled 120)" "$env/bin/pip" install --no-deps "$wheel"
cd / || exit 1
in_env () { timeout "$(scaled 60)" "$env/bin/python" "$@"; }
package=$(in_env -c 'import gradcomp, os; print(os.path.dirname(gradcomp.__file__))')
check 'it is imported from there' test "${package#"$env"}" != "$package"
is 'the package and its library have the version' \
	"$(in_env -c 'import gradcomp; print(gradcomp.__version__, gradcomp.version())')" "$version $version"
is "pip's metadata too" "$(in_env -c 'import importlib.metadata as m; print(m.version("gradcomp"))')" "$version"
check 'the command' "$env/bin/gradcomp" check --compressor powersgd:rank=4
like 'plugins are those of the wheel' "$("$env/bin/gradcomp" config)" "plugin_path    = $package/lib/gradcomp "
refuse 'a model that is not there' "$env/bin/gradcomp" plan --model none --machine "$GRADCOMP_SRC/examples/gigabit.machine"
like 'models are those of the wheel' "$said" "$package/share/gradcomp/models has"
check 'python -m gradcomp' in_env -m gradcomp version
is 'a job of one rank' "$(in_env -c 'import array, gradcomp
a = array.array("f", [1, 2])
gradcomp.Job().world.allreduce(a)
print(a.tolist())' 2>&1)" '[1.0, 2.0]'
if in_env -c 'import torch.distributed as d; raise SystemExit(not d.is_gloo_available())' 2> /dev/null; then
	trained=$(GRADCOMP=powersgd:rank=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=29$((RANDOM % 900 + 100)) WORLD_SIZE=2 bash -c '
		for rank in 1 0; do RANK=$rank LOCAL_RANK=$rank timeout "$1" "$2" "$3" --steps 10 --warm-up 2 2>&1 & done; wait' \
		- "$(scaled 90)" "$env/bin/python" "$GRADCOMP_SRC/examples/pytorch/digits.py")
	like 'two ranks train' "$trained" 'gradcomp: powersgd:rank=4 on 2 ranks of 1 node: 10 steps'
else
	skip 'two ranks train' "no PyTorch for $python"
fi

# ---- whose it is

if [ "$(id -u)" = 0 ]; then
	asked () { setpriv --reuid "$1" --regid "$1" --clear-groups "$env/bin/python" -m gradcomp check --compressor topk; }
	chown -R 64202 "$env"
	check "a user's own environment" asked 64202
	check 'that of whoever installed it, for another user' asked 64201
	chown 64203 "$package/lib/gradcomp/compressors/topk.so"
	refuse "a third user's file in it" asked 64201
	like '... is not trusted' "$said" "topk.so is not trusted: it belongs to user 64203"
	chown -R root "$env"
else
	skip 'whose it is' 'other users need root'
fi

# ---- beside another version

other=$tmp/other
mkdir -p "$other/lib/gradcomp/python"
cp -r "$package" "$other/lib/gradcomp/python"
mv "$other/lib/gradcomp/python/gradcomp/lib/libgradcomp.so.0" "$other/lib/"
rm -r "$other/lib/gradcomp/python/gradcomp/lib"
LC_ALL=C sed -i "s/${version//./\\.}/9.9.9/g" "$other/lib/libgradcomp.so.0"
mixed () { GRADCOMP=none in_env -c 'import gradcomp; gradcomp.Job()'; }
GRADCOMP_LIBRARY=$other/lib/libgradcomp.so.0 refuse 'a library of another version' mixed
like '... both are named' "$said" \
	"the package $package is of gradcomp $version, but $other/lib/libgradcomp.so.0 is 9.9.9; GRADCOMP_LIBRARY names it: unset that"
PYTHONPATH=$other/lib/gradcomp/python refuse 'an installation whose package is older than its library' mixed
like '... both are named, too' "$said" "but $other/lib/libgradcomp.so.0 is 9.9.9; install both of one version"
sed -i "s/^__version__ = .*/__version__ = \"9.9.9\"/" "$other/lib/gradcomp/python/gradcomp/_lib.py"
both='import gradcomp; print(gradcomp.__version__, gradcomp.version())'
is 'PYTHONPATH comes first, with its own library' "$(PYTHONPATH=$other/lib/gradcomp/python in_env -c "$both")" '9.9.9 9.9.9'
is 'without it the environment' "$(in_env -c "$both")" "$version $version"

# ---- removed

check 'pip uninstall' timeout "$(scaled 120)" "$env/bin/pip" uninstall -y gradcomp
is '... leaves nothing' "$(cd "$env" && find . | sort | comm -13 "$tmp/before" - | grep -v __pycache__)" ''
done_testing
