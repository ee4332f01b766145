#!/bin/sh
# gradcomp check: what srun, sbatch and salloc ask before submission.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"

try () { "$gradcomp" check "$@"; }
quiet () { said=$(try "$@" 2>&1) && [ -z "$said" ]; }

check "a good pair" quiet --compressor sample:rank=8 --collective both
check "--name=VALUE" quiet --compressor=sample --collective=both
check "a collective that sums codes takes what can be coded instead" quiet --compressor either --collective whole
check "a report" quiet --compressor sample --collective both --report '/r/%j.%s.json'
check "a schedule and a record" quiet --compressor sample --collective both --schedule fixed:bytes=1M --record '/r/%j.ini'

# bad NAME TEXT OPTION...: refused with status 1 and one line, "gradcomp: ...TEXT..."
bad () {
	bad_name=$1 bad_text=$2
	shift 2
	said=$(try "$@" 2>&1)
	is "$bad_name: status" $? 1
	like "$bad_name: says so" "$said" "$bad_text"
	is "$bad_name: one line with the prefix" "$(printf '%s\n' "$said" | grep -c -v '^gradcomp: ')" 0
}
bad "unknown compressor" "compressor 'smaple' is not installed (did you mean 'sample'?); there are " \
	--compressor smaple --collective both
bad "unknown collective" "collective 'ring' is not installed; there are both, promise, sumonly, whole" \
	--compressor sample
bad "unknown key" "sample: unknown parameter 'rnak' (did you mean 'rank'?); it takes rank=INT (1..64, default 4), density=" \
	--compressor sample:rnak=4 --collective both
bad "value out of range" "sample: rank: '65' is too large; rank=INT (1..64, default 4)" \
	--compressor sample:rank=65 --collective both
bad "key twice" "parameter given twice: 'rank'" --compressor sample:rank=1,rank=2 --collective both
bad "NaN" "'nan' is not a number" --compressor sample:density=nan --collective both
bad "trailing junk" "is not an integer" --compressor sample:rank=4x --collective both
bad "no value" "no value for parameter 'rank'" --compressor sample:rank= --collective both
bad "empty SPEC" "does not begin with a name" --compressor "" --collective both
bad "a path" "cannot be a name" --compressor ../sample --collective both
bad "control characters" "there is a control character behind 'a', which cannot be seen: write the value anew" --compressor "$(printf 'a\033[2Jb')" --collective both
unlike "control characters: none come back" "$said" "$(printf '\033')"
bad "a policy with a wrong word" "policy, entry 2 at character 11: 'al_gather' is no word of a selector (did you mean 'all_gather'?)" \
	--compressor dp/sample+al_gather/sample --collective both
bad "a policy with a wrong SPEC" "policy, entry 1 'dp': compressor 'smaple' is not installed (did you mean 'sample'?)" \
	--compressor dp/smaple --collective both
bad "two parameters that do not agree" "rank 40 goes with a density of at most 0.5" \
	--compressor sample:rank=40,density=0.9 --collective both
bad "impossible pair" "compressor 'gatherer' needs an all-gather, which collective 'sumonly' does not have; collectives that serve it: both" \
	--compressor gatherer --collective sumonly
bad "payloads that merge, and nothing to merge them" "compressor 'merger' needs a merge tree, which collective 'both' does not have; collectives that serve it: none is installed" \
	--compressor merger --collective both
bad "coded sums" "compressor 'coder' needs a coded all-reduce, which collective 'both' does not have; collectives that serve it: whole" \
	--compressor coder --collective both
bad "newer ABI" "field abi_version: found 4, expected at most 3" --compressor newer_abi --collective both
bad "report with an unknown letter" "after '%' may come j (job), s (step)" --compressor sample --collective both --report '%x'
bad "report that is a folder" "names a directory" --compressor sample --collective both --report /tmp/
bad "empty report" "needs a file name" --compressor sample --collective both --report ""
bad "empty record" "a record needs a file name" --compressor sample --collective both --record ""
bad "record with an unknown letter" "option --gradcomp-record: " --compressor sample --collective both --record '%x'
bad "record with an unknown letter: what it is" "record '%x': after '%' may come" --compressor sample --collective both --record '%x'
check "whether models are attached" quiet --compressor sample --collective both --auto-attach no
bad "an answer that is none" "option --gradcomp-auto-attach: gradcomp.auto_attach: 'maybe' is not yes or no" --compressor sample --collective both --auto-attach maybe
check "what becomes of a job that loses a rank" quiet --compressor sample --collective both --on-failure shrink
bad "something else" "option --gradcomp-on-failure: gradcomp.on_failure: 'retry' is not " --compressor sample --collective both --on-failure retry
bad "two schedules" "no schedule 'wfbp,single'; there are wfbp, single, fixed" --compressor sample --collective both --schedule wfbp,single
bad "unknown schedule" "no schedule 'nope'; there are wfbp, single, fixed" --compressor sample --collective both --schedule nope

bad "auto: an unknown key" "auto: unknown parameter 'max_eror' (did you mean 'max_error'?)" --compressor auto:max_eror=1 --collective both
bad "auto: no such base" "compressor 'none' is not installed" --compressor auto --collective both
GRADCOMP_AUTO_CANDIDATES="sample, auto" bad "auto: itself a candidate" "candidate 'auto': 'auto' chooses and cannot be chosen" \
	--compressor auto --collective both
(GRADCOMP_AUTO_CANDIDATES="sample:rank=8, nowhere" quiet --compressor auto --collective both)
is "auto: a candidate that is not installed is left out later" $? 0
for key in allow deny; do
	GRADCOMP_AUTO_CANDIDATES=sample bad "auto: $key, not installed" "auto: $key: compressor 'nowhere' is not installed" \
		--compressor "auto:$key=nowhere" --collective both
done
bad "auto: a candidate of the option that is not installed" "auto: candidate 'nowhere': compressor 'nowhere' is not installed" \
	--compressor auto:candidates=sample:rank=8/nowhere --collective both
bad "auto: a candidate of the option out of range" "auto: candidate 'sample:rank=65': sample: rank: '65' is too large" \
	--compressor auto:candidates=sample/sample:rank=65 --collective both
GRADCOMP_AUTO_CANDIDATES='sample, nowhere, sample:rank=8' \
	bad "auto: what is denied, with and without parameters" "auto: no candidate is left of 'sample, nowhere, sample:rank=8' with deny=nowhere,sample" \
	--compressor auto:deny=nowhere/sample --collective both
bad "auto: a slip" "compressor 'auot' is not installed (did you mean 'auto'?)" --compressor auot --collective both

# What is not given comes from the environment and the file, and is named by it.
GRADCOMP=sample:rank=0 bad "wrong value in the environment" "gradcomp.compressor (environment GRADCOMP): sample: rank: '0' is too small" \
	--collective both
(GRADCOMP=../x quiet --compressor sample --collective both)
is "an option replaces a wrong variable" $? 0
printf '[gradcomp]\ncollective = nowhere\n' >"$tmp/conf"
bad "wrong collective in the file" "gradcomp.collective ($tmp/conf:2): collective 'nowhere' is not installed" \
	--compressor sample
printf '[gradcomp]\ncolective = both\n' >"$tmp/conf"
bad "unknown key in the file" "$tmp/conf:2: unknown key 'colective' in section [gradcomp] (did you mean 'gradcomp.collective'?)" \
	--compressor sample
printf '[gradcomp]\nreport = %065600d\n' 0 >"$tmp/conf"
bad "overlong line in the file" "$tmp/conf:2: the line is too long; at most" --compressor sample
: >"$tmp/conf"
chmod 666 "$tmp/conf"
bad "file that everybody can write" "$tmp/conf is not trusted: it can be written by everybody (mode 0666); mend it with: chmod go-w $tmp/conf" \
	--compressor sample
chmod 644 "$tmp/conf"
GRADCOMP_CONF=$tmp/nothing bad "file that is missing" "GRADCOMP_CONF: $tmp/nothing: No such file" --compressor sample

# With the collectives of this build: nobody named one, so one that works will do.
if [ -e "$GRADCOMP_BUILD/lib/gradcomp/collectives/tree.so" ] && [ -e "$GRADCOMP_BUILD/lib/gradcomp/collectives/ring.so" ]; then
	real=$GRADCOMP_BUILD/lib/gradcomp:$fixtures
	merging="auto, tree"
	[ ! -e "$GRADCOMP_BUILD/lib/gradcomp/collectives/nccl.so" ] || merging="auto, nccl, tree"
	: >"$tmp/conf"
	(GRADCOMP_PLUGIN_PATH=$real quiet --compressor merger)
	is "the default collective cannot merge: another one is found" $? 0
	(GRADCOMP_PLUGIN_PATH=$real quiet --compressor coder)
	is "the default collective can code" $? 0
	GRADCOMP_PLUGIN_PATH=$real bad "a collective that was named stays" "compressor 'merger' needs a merge tree, which collective 'ring' does not have; collectives that serve it: $merging" \
		--compressor merger --collective ring
	printf '[gradcomp]\ncollective = ring\n' >"$tmp/conf"
	GRADCOMP_PLUGIN_PATH=$real bad "one that the file names too" "collectives that serve it: $merging" --compressor merger
	: >"$tmp/conf"
else
	skip "the default collective" "ring and tree were not built"
fi

# Plugins that are not what they should be.
export GRADCOMP_PLUGIN_PATH="$tmp/plugins:$fixtures"
there=$tmp/plugins/compressors
echo text >"$there/text.so"
bad "text file" "text.so cannot be loaded: " --compressor text --collective both
cp "$fixtures/compressors/sample.so" "$there/cut.so"
truncate -s 4096 "$there/cut.so"
bad "truncated plugin" "cut.so is truncated: it has 4096 bytes" --compressor cut --collective both
cp "$fixtures/compressors/sample.so" "$there/other.so"
bad "plugin under another name" "field name: found 'sample', expected 'other'" --compressor other --collective both
chmod 646 "$there/other.so"
bad "plugin that everybody can write" "it can be written by everybody (mode 0646)" --compressor other --collective both
mkdir "$there/folder.so"
bad "directory" "folder.so is a directory, not a regular file" --compressor folder --collective both
mkfifo "$there/pipe.so"
bad "FIFO" "pipe.so is a FIFO, not a regular file" --compressor pipe --collective both
ln -s /dev/zero "$there/device.so"
bad "device" "device.so is a device, not a regular file" --compressor device --collective both
cp "$fixtures/compressors/gatherer.so" "$there/gatherer.so"
chmod 777 "$there"
bad "directory that everybody can write" "$there can be written by everybody (mode 0777)" --compressor gatherer --collective both
chmod 755 "$there"

# Only the named plugins are opened: the others of this path would be complained
# about, and a file that cannot be used does not matter.
if command -v strace >/dev/null; then
	opened=$(strace -f -e trace=openat "$gradcomp" check --compressor gatherer --collective both 2>&1 |
		grep -c 'plugins/co.*\.so')
	is "each of two plugins is opened three times, to check, to load, to know which file it is" "$opened" 6
else
	skip "only the named plugins are opened" "strace is not installed"
fi

# Schedules, and the file of a plan.
for schedule in wfbp single fixed fixed:bytes=4M mgwfbp omgs auto; do
	check "schedule $schedule" quiet --compressor sample --collective both --schedule "$schedule"
done
cat >"$tmp/good.plan" <<-'END'
	[plan]
	model = tiny
	hash = 00000000000000ff
	tensors = 3
	parameters = 30
	compressor = none
	collective = ring
	lag = 0
	predicted = 0.1
	[buckets]
	0 = 0-1 place 0
	1 = 2-2 place 1
END
sed "s|^1 = 2-2|1 = 3-3|" "$tmp/good.plan" >"$tmp/bad.plan"
check "a plan's file" quiet --compressor sample --collective both --schedule "plan:file=$tmp/good.plan"
bad "a plan with a gap" "$tmp/bad.plan:12: " --compressor sample --collective both --schedule "plan:file=$tmp/bad.plan"
bad "no plan there" "there is no plan file $tmp/no.plan; gradcomp plan --output FILE writes one" --compressor sample --collective both --schedule "plan:file=$tmp/no.plan"
bad "no such schedule" "no schedule 'mgwfpb' (did you mean 'mgwfbp'?)" --compressor sample --collective both --schedule mgwfpb
bad "a size that is none" "fixed: bytes: 'many' is not a size" --compressor sample --collective both --schedule fixed:bytes=many
bad "a plan without a file" "missing parameter 'file'" --compressor sample --collective both --schedule plan

# Usage.
for wrong in "--compresor x" "--compressor" "word" "--compressor=x extra"; do
	# shellcheck disable=SC2086
	try $wrong >"$tmp/out" 2>&1
	is "usage error: check $wrong" $? 2
done
like "and the usage is shown" "$(cat "$tmp/out")" "usage: gradcomp check"
check "--help" try --help
done_testing
