#!/bin/sh
# configure: its options, what it says about libraries, what it writes.
# shellcheck source=tests/support/tap.sh disable=SC2317
. "$GRADCOMP_SRC/tests/support/tap.sh"
unset CC CFLAGS CPPFLAGS LDFLAGS LIBS AR NVCC CUDA_ARCHS PKG_CONFIG 2>/dev/null

# A compiler on a machine that lacks the headers in $HIDE.
cat >"$tmp/cc" <<'END'
#!/bin/sh
for word; do
	case $word in *.c) file=$word ;; esac
done
if [ -n "${file-}" ]; then
	for header in $HIDE; do
		if grep -q "include <$header>" "$file"; then
			echo "$file: fatal error: $header: No such file or directory" >&2
			exit 1
		fi
	done
fi
exec cc "$@"
END
chmod +x "$tmp/cc"

# conf FOLDER OPTION...
conf () {
	mkdir -p "$tmp/$1" && cd "$tmp/$1" || return
	shift
	"$GRADCOMP_SRC/configure" "$@"
}
value () { sed -n "s|^$2 = *||p" "$tmp/$1/config.mk"; }

# ---- options

check "--help" conf help --help
help=$said
is "--help writes nothing" "$(ls "$tmp/help")" ""
listed=$(printf '%s\n' "$help" | sed -n 's/^  \(--[a-z-]*\).*/\1/p' | sort)
accepted=$(sed -n 's/^\([a-z0-9]*\)|.*/--with-\1/p' "$GRADCOMP_SRC/configure" | sed 's/[0-9]*$//'
	sed -n '/^for arg; do$/,/^done$/p' "$GRADCOMP_SRC/configure" | grep -v 'datadir=\*) ;;' |
	sed -n 's/^	\(--[a-z-]*\).*) [a-z].*/\1/p' | grep -v -e --version -e --help | sort -u)
for option in $listed; do
	case $option in
	--build) ;;
	--disable-rpath) like "$option of --help is known" "$accepted" --enable-rpath ;;
	*) like "$option of --help is known" "$accepted" "$option" ;;
	esac
done
for option in $accepted; do
	case $option in
	--enable-rpath|--disable-werror|--disable-silent-rules|--disable-relocatable|--disable-static-libs) ;;
	*) like "$option is in --help" "$listed" "$option" ;;
	esac
done
for lib in inih xxhash slurm pmix jansson cuda nccl verbs nfs zfp lz4 zstd sodium seccomp openmpi mpich munge; do
	like "--with-$lib is in --help" "$help" "--with-${lib}[=DIR]"
done

refuse "an unknown option is an error" conf bad --frobnicate
like "... which names it" "$said" "--frobnicate"
refuse "an unknown argument is an error" conf bad frobnicate
refuse "--with-pmix= is an error" conf bad --with-pmix=
refuse "a relative folder of a library is an error" conf bad --with-pmix=lib/pmix
refuse "a relative prefix is an error" conf bad --prefix=opt
refuse "what can be moved has its library right below the prefix" conf bad --prefix=/opt --enable-relocatable --libdir=/opt/lib/x
like "... it says which folder is not" "$said" "libdir is '/opt/lib/x'"
refuse "a prefix with a blank is an error" conf bad "--prefix=/opt/a b"
refuse "a prefix with a dollar is an error" conf bad "--prefix=/opt/\$HOME"
is "a refused option leaves nothing" "$(ls "$tmp/bad")" ""

none="--without-slurm --without-pmix --without-cuda --without-nccl --without-verbs --without-jansson --without-zfp
--without-lz4 --without-zstd --without-sodium --without-seccomp --without-openmpi --without-mpich --without-munge --without-nfs"
# shellcheck disable=SC2086
check "unknown --enable and --with are accepted" conf warn $none --enable-frob --with-nic=x --disable-static
like "... with a warning (enable)" "$said" "warning: unknown option --enable-frob"
like "... with a warning (with)" "$said" "warning: unknown option --with-nic=x"
like "... with a warning (disable)" "$said" "warning: unknown option --disable-static"

# ---- directories and variables

# shellcheck disable=SC2086
check "odd but legal prefix" conf dirs $none --prefix=/opt/g++_1.0@x~y-z --exec-prefix=/opt/e --libdir=/opt/l/lib64 \
	--sysconfdir=/etc --with-slurm-plugindir=/s CC=cc CFLAGS='-O1 -DNAME="a b"' CPPFLAGS=-DPRE=1
is "prefix" "$(value dirs prefix)" "/opt/g++_1.0@x~y-z"
is "bindir follows exec-prefix" "$(value dirs bindir)" "/opt/e/bin"
is "includedir follows prefix" "$(value dirs includedir)" "/opt/g++_1.0@x~y-z/include"
is "mandir follows datarootdir" "$(value dirs mandir)" "/opt/g++_1.0@x~y-z/share/man"
is "libdir" "$(value dirs libdir)" "/opt/l/lib64"
unlike "... is no run-time path" "$(grep -v ^CONFIGURE_ARGS "$tmp/dirs/config.mk")" rpath
is "slurm's plugin folder" "$(value dirs slurmplugindir)" "/s"
is "plugstack.conf.d follows sysconfdir" "$(value dirs plugstackdir)" "/etc/slurm/plugstack.conf.d"
is "CFLAGS replace the default" "$(value dirs CFLAGS)" '-O1 -DNAME="a b"'
like "required flags stay apart" "$(value dirs CFLAGS_REQ)" "-ffp-contract=off"
like "gradcomp_config.h knows the plugins' folder" "$(cat "$tmp/dirs/gradcomp_config.h")" \
	'#define GRADCOMP_PLUGINDIR "/opt/l/lib64/gradcomp"'
like "gradcomp_config.h knows the version" "$(cat "$tmp/dirs/gradcomp_config.h")" \
	"#define GRADCOMP_VERSION_STRING \"$(cat "$GRADCOMP_SRC/VERSION")\""

cp "$tmp/dirs/config.mk" "$tmp/before.mk"
touch -d '2001-01-01' "$tmp/dirs/gradcomp_config.h"
check "config.status runs it again" "$tmp/dirs/config.status"
is "... with the same result" "$(cat "$tmp/dirs/config.mk")" "$(cat "$tmp/before.mk")"
is "... and an unchanged header keeps its date" "$(stat -c %Y "$tmp/dirs/gradcomp_config.h")" \
	"$(date -d '2001-01-01' +%s)"

# shellcheck disable=SC2086
CFLAGS='-O1 -g3' CC=cc check "variables from the environment" conf env $none
is "CFLAGS from the environment" "$(value env CFLAGS)" "-O1 -g3"
check "config.status remembers the environment" env -u CFLAGS -u CC "$tmp/env/config.status"
is "... CFLAGS" "$(value env CFLAGS)" "-O1 -g3"
# shellcheck disable=SC2086
check "no CFLAGS at all" conf plain $none
is "the default is -O2 -g" "$(value plain CFLAGS)" "-O2 -g"
# shellcheck disable=SC2086
refuse "a compiler that is not there" conf nocc $none CC=/nonexistent/cc
# shellcheck disable=SC2086
refuse "flags that the compiler refuses" conf noflag $none CFLAGS=-fno-such-flag-exists=1
like "... are named" "$said" "-fno-such-flag-exists"
like "... and its words are in config.log" "$(cat "$tmp/noflag/config.log")" "-fno-such-flag-exists"

# ---- libraries

like "what is left out is said" "$(sed -n '/to be installed/,$p' "$tmp/plain/config.log")" "left out by --without-pmix"
like "... and what that takes away" "$(cat "$tmp/plain/config.log")" "no srun --gradcomp"
is "no PMIx" "$(value plain HAVE_PMIX)" no
is "no Slurm" "$(value plain HAVE_SLURM)" no
unlike "no run-time path to what is found without one" "$(grep -v ^CONFIGURE_ARGS "$tmp/plain/config.mk")" "rpath"
like "config.log has the test programs" "$(cat "$tmp/plain/config.log")" "| #include <ini.h>"

# required NAME HEADER DEBIAN RPM: left out, then missing
required () {
	refuse "$1 cannot be left out" conf "$1" "--without-$1"
	like "... names Debian's package" "$said" "$3"
	# shellcheck disable=SC2086
	HIDE=$2 refuse "$1 missing" conf "$1" $none CC="$tmp/cc"
	like "... names Debian's package" "$said" "$3"
	like "... names the RPM package" "$said" "$4"
	like "... and config.log says why" "$(cat "$tmp/$1/config.log")" "$2: No such file or directory"
}
required inih ini.h libinih-dev inih-devel
required xxhash xxhash.h libxxhash-dev xxhash-devel

# missing NAME HEADER DEBIAN RPM: asked for, then auto. A third of them at a time, all in check-long, and always those that
# are asked for further down.
libraries=0
echo "# PART=$(part)"
missing () {
	libraries=$((libraries + 1))
	case $1 in zfp | lz4) ;; *) in_part $libraries 3 || return 0 ;; esac
	others=$(echo "$none" | sed "s/--without-$1//")
	[ "$1" != nccl ] || others=$(echo "$others" | sed "s/--without-cuda//")
	# shellcheck disable=SC2086
	HIDE=$2 refuse "--with-$1 and no $2" conf "miss-$1" $others "--with-$1" CC="$tmp/cc"
	like "... names Debian's package" "$said" "$3"
	like "... names the RPM package" "$said" "$4"
	# shellcheck disable=SC2086
	refuse "--with-$1=DIR where it is not" conf "miss-$1" $others "--with-$1=$tmp/nowhere"
	like "... names the folder" "$said" "--with-$1=$tmp/nowhere"
	# shellcheck disable=SC2086
	HIDE=$2 check "$1 not found and not asked for" conf "auto-$1" $others CC="$tmp/cc"
	like "... is a line of the summary" "$(printf '%s\n' "$said" | grep "^  $1 ")" "no (not found; Debian: $3, RPM: $4"
	up=$(echo "$1" | tr '[:lower:]' '[:upper:]')
	like "... and not defined" "$(cat "$tmp/auto-$1/gradcomp_config.h")" "/* #undef HAVE_$up */"
}
missing slurm slurm/spank.h libslurm-dev slurm-devel
missing pmix pmix.h libpmix-dev pmix-devel
missing jansson jansson.h libjansson-dev jansson-devel
missing verbs infiniband/verbs.h libibverbs-dev rdma-core-devel
missing nfs nfsc/libnfs.h libnfs-dev libnfs-devel
missing zfp zfp.h libzfp-dev zfp-devel
missing lz4 lz4.h liblz4-dev lz4-devel
missing zstd zstd.h libzstd-dev libzstd-devel
missing sodium sodium.h libsodium-dev libsodium-devel
missing seccomp seccomp.h libseccomp-dev libseccomp-devel
missing openmpi mpi.h libopenmpi-dev openmpi-devel
missing mpich mpi.h libmpich-dev mpich-devel
missing munge munge.h libmunge-dev munge-devel
missing cuda cuda_runtime.h nvidia-cuda-toolkit cuda-toolkit
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
	missing nccl nccl.h libnccl-dev libnccl-devel
else
	refuse "--with-nccl without CUDA" conf miss-nccl --with-nccl --without-cuda
	like "... says what it needs" "$said" "needs CUDA"
fi

# Of several CUDA toolkits the one that serves most drivers is taken, if it works; these do nothing else.
# fake_toolkit VERSION WORKS
fake_toolkit () {
	mkdir -p "$tmp/toolkits/cuda-$1/bin" "$tmp/toolkits/cuda-$1/include" "$tmp/toolkits/cuda-$1/lib64"
	cat >"$tmp/toolkits/cuda-$1/bin/nvcc" <<-END
		#!/bin/sh
		case \$1 in --version) echo "Cuda compilation tools, release $1, V$1.1"; exit ;; --list-gpu-code) printf "sm_75\\nsm_80\\nsm_90\\n"; exit ;; esac
		while [ \$# -gt 1 ]; do [ "\$1" != -o ] || : >"\$2"; shift; done
		exit $2
	END
	chmod +x "$tmp/toolkits/cuda-$1/bin/nvcc"
	echo '#define cudaSuccess 0
	static inline int cudaGetDeviceCount(int *n) { return *n = 0; }' >"$tmp/toolkits/cuda-$1/include/cuda_runtime.h"
	ar rc "$tmp/toolkits/cuda-$1/lib64/libcudart.a"
}
fake_toolkit 13.1 0
fake_toolkit 12.4 0
fake_toolkit 12.9 1
ln -s cuda-13.1 "$tmp/toolkits/cuda"
of=$tmp/toolkits
without=$(echo "$none" | sed "s/--without-cuda//")
# shellcheck disable=SC2086
PATH=$of/cuda/bin:$PATH check "toolkits of CUDA 12 and 13" conf toolkits $without
is "12 is taken" "$(value toolkits NVCC)" "$of/cuda-12.4/bin/nvcc"
like "... which is said" "$said" "$of/cuda-12.4/bin/nvcc (12.4), not $of/cuda/bin/nvcc (13): it serves older drivers, too"
like "... with its own headers" "$(value toolkits CUDA_CFLAGS)" "$of/cuda-12.4/include"
is "... and its native code is for those of four GPUs that it knows" "$(value toolkits CUDA_ARCHS)" "80 90"
# shellcheck disable=SC2086
PATH=$of/cuda/bin:$PATH check "unless GPUs are named" conf toolkits-gpus $without CUDA_ARCHS="sm_90"
is "... for which it is" "$(value toolkits-gpus CUDA_ARCHS)" "90"
for gpu in 9.0:90 12.0:80 7.5:80 :80; do
	mkdir -p "$tmp/smi"
	printf '#!/bin/sh\necho %s; [ -n "%s" ]\n' "${gpu%:*}" "${gpu%:*}" > "$tmp/smi/nvidia-smi"
	chmod +x "$tmp/smi/nvidia-smi"
	# shellcheck disable=SC2086
	PATH=$tmp/smi:$of/cuda/bin:$PATH check "the GPU of this machine: ${gpu%:*}" conf "toolkits-native-${gpu#*:}" $without CUDA_ARCHS=native
	is "... is native code for ${gpu#*:}" "$(value "toolkits-native-${gpu#*:}" CUDA_ARCHS)" "${gpu#*:}"
done
# shellcheck disable=SC2086
PATH=$of/cuda/bin:$PATH refuse "a GPU that nvcc does not know, or that is too old" conf toolkits-none $without CUDA_ARCHS="90 75"
like "... is told, with those that will do" "$said" "makes no code for '75', but for 80 90"
# shellcheck disable=SC2086
PATH=$of/cuda/bin:$PATH check "unless another is named" conf toolkits-named $without NVCC="$of/cuda-13.1/bin/nvcc"
is "... which is taken" "$(value toolkits-named NVCC)" "$of/cuda-13.1/bin/nvcc"
# shellcheck disable=SC2086
PATH=$of/cuda/bin:$PATH check "... or its folder" conf toolkits-folder $without --with-cuda="$of/cuda-13.1"
is "... which is taken" "$(value toolkits-folder NVCC)" "$of/cuda-13.1/bin/nvcc"
rm -r "$of/cuda-12.4"
# shellcheck disable=SC2086
PATH=$of/cuda/bin:$PATH check "one of 12 that does not compile" conf toolkits-broken $without
is "... is not taken" "$(value toolkits-broken NVCC)" "$of/cuda/bin/nvcc"

# What is lost with a codec depends on the other.
like "without libzfp no zfp" "$(cat "$tmp/auto-zfp/config.log")" "zfp-devel): no compressor zfp"
like "without LZ4 and zstd no lossless" "$(cat "$tmp/auto-lz4/config.log")" "lz4-devel): no compressor lossless"
others=$(echo "$none" | sed "s/--without-lz4//; s/--without-zstd//")
if printf '#include <lz4.h>\n' | cc -E - >/dev/null 2>&1; then
	# shellcheck disable=SC2086
	HIDE=zstd.h check "LZ4 without zstd" conf half-lossless $others --with-lz4 CC="$tmp/cc"
	like "... has the compressor, without the codec" "$said" "libzstd-devel): no codec zstd in the compressor lossless"
else
	skip "LZ4 without zstd" "no lz4.h"
fi

# Slurm's version and the two later additions, from headers made here.
fake_slurm () {
	mkdir -p "$tmp/slurm$1/include/slurm"
	echo "#define SLURM_VERSION_NUMBER $1" >"$tmp/slurm$1/include/slurm/slurm_version.h"
	{
		cat <<-'END'
			#include <slurm/slurm_version.h>
			typedef struct spank_handle *spank_t;
			#define SPANK_PLUGIN(n, v) const int plugin_version = SLURM_VERSION_NUMBER + v;
			#define ESPANK_SUCCESS 0
			int spank_remote(spank_t);
		END
		echo "$2"
	} >"$tmp/slurm$1/include/slurm/spank.h"
}
fake_slurm 0x160508 ""
fake_slurm 0x190500 "extern int slurm_spank_init_failure_mode; int spank_prepend_task_argv(spank_t, int, const char **);"
others=$(echo "$none" | sed 's/--without-slurm//')
# shellcheck disable=SC2086
check "Slurm in a folder" conf slurm-old $others --with-slurm="$tmp/slurm0x160508"
like "... its version" "$(cat "$tmp/slurm-old/gradcomp_config.h")" '#define GRADCOMP_SLURM_VERSION "22.05.8"'
unlike "... has no spank_prepend_task_argv" "$(cat "$tmp/slurm-old/gradcomp_config.h")" "define HAVE_SPANK_PREPEND"
# shellcheck disable=SC2086
check "a later Slurm" conf slurm-new $others --with-slurm="$tmp/slurm0x190500"
like "... its version" "$(cat "$tmp/slurm-new/gradcomp_config.h")" '#define GRADCOMP_SLURM_VERSION "25.05.0"'
like "... has spank_prepend_task_argv" "$(cat "$tmp/slurm-new/gradcomp_config.h")" "#define HAVE_SPANK_PREPEND_TASK_ARGV 1"
like "... has slurm_spank_init_failure_mode" "$(cat "$tmp/slurm-new/gradcomp_config.h")" \
	"#define HAVE_SLURM_SPANK_INIT_FAILURE_MODE 1"
unlike "... whose srun has nothing to say of PMIx" "$said" MpiDefault
# shellcheck disable=SC2046,SC2086
check "and PMIx, if it is here" conf slurm-pmix $(echo "$others" | sed 's/--without-pmix//') --with-slurm="$tmp/slurm0x190500"
if [ "$(value slurm-pmix HAVE_PMIX)" = yes ]; then
	like "... what ranks need is in the summary" "$said" "ranks        srun --mpi=pmix, or MpiDefault=pmix in slurm.conf"
else
	skip "... what ranks need is in the summary" "no PMIx"
fi

# inih in a folder of its own, without pkg-config's help.
if [ -f /usr/include/ini.h ] && lib=$(find /usr/lib /usr/lib64 -name libinih.so 2>/dev/null | head -n 1) && [ -n "$lib" ]; then
	mkdir -p "$tmp/own/include" "$tmp/own/lib64"
	cp /usr/include/ini.h "$tmp/own/include"
	cp "$lib" "$tmp/own/lib64"
	# shellcheck disable=SC2086
	check "inih in a folder" conf own $none --with-inih="$tmp/own"
	like "... its headers" "$(value own INIH_CFLAGS)" "-I$tmp/own/include"
	like "... its run-time path" "$(value own INIH_LIBS)" "-Wl,-rpath,$tmp/own/lib64"
	# shellcheck disable=SC2086
	check "... without a run-time path" conf own $none --with-inih="$tmp/own" --disable-rpath
	unlike "--disable-rpath" "$(grep -v ^CONFIGURE_ARGS "$tmp/own/config.mk")" "rpath"
else
	skip "inih in a folder" "no libinih.so to copy"
fi

# shellcheck disable=SC2086
check "a cross compiler's tools are looked for by name" conf cross $none --host="$(cc -dumpmachine)"
is "... CC" "$(value cross CC)" "$(cc -dumpmachine)-gcc"

is "no scratch folder stays" "$(find "$tmp" -name 'conftest.*')" ""
done_testing
