#!/bin/bash
# Mistakes that people make in gradcomp.conf and in the environment: config --check answers each, names where it
# is, and says what would be right. What is right it leaves alone.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
unset GRADCOMP_PLUGIN_PATH
export GRADCOMP_CONF=$tmp/conf GRADCOMP_PLUGIN_PATH=$GRADCOMP_BUILD/lib/gradcomp
mkdir "$tmp/dir"
echo x > "$tmp/file"
nbsp=$'\xc2\xa0' zero=$'\xe2\x80\x8b'

# answer STATUS 'SECTION|LINE|LINE' WORDS: what the file gets
number=0
answer () {
	local want=$1 words=$3
	number=$((number + 1))
	printf '[%s\n' "${2//|/$'\n'}" | sed '1s/$/]/' > "$tmp/conf"
	said=$("$gradcomp" config --check 2>&1) && status=0 || status=$?
	is "$2: status" "$status" "$want"
	like "... is answered" "$said" "$words"
}
# variable NAME=VALUE WORDS: what the environment gets
variable () {
	number=$((number + 1))
	: > "$tmp/conf"
	said=$(env "$1" "$gradcomp" config --check 2>&1) && status=0 || status=$?
	is "$(printf %q "$1"): status" "$status" 1
	like '... is answered' "$said" "$2"
}

# ---- SPECs
answer 1 'gradcomp|compressor = tpok' "(did you mean 'topk'?)"
answer 1 'gradcomp|compressor = topk:density=2' 'density'
answer 1 'gradcomp|compressor = topk:densty=0.1' "'densty'"
answer 1 'gradcomp|compressor = topk density=0.1' 'gradcomp.compressor'
answer 1 'gradcomp|compressor = topk:density 0.1' 'gradcomp.compressor'
answer 1 'gradcomp|compressor = topk:density=0.1:k=3' 'gradcomp.compressor'
answer 1 'gradcomp|compressor = TopK' 'gradcomp.compressor'
answer 1 'gradcomp|compressor = powersgd:rank=4.5' 'rank'
answer 1 'gradcomp|collective = ring:foo=1' "'foo'"
answer 1 'gradcomp|collective = rnig' "gradcomp.collective ($tmp/conf:2): collective 'rnig'"
answer 1 'gradcomp|compressor = topk,powersgd' 'gradcomp.compressor'
answer 1 'gradcomp|compressor = /opt/topk.so' 'gradcomp.compressor'
answer 1 'gradcomp|device_collective = nclc' 'gradcomp.device_collective'
answer 1 'gradcomp|schedule = mgwfpb' 'gradcomp.schedule'
answer 1 'gradcomp|schedule = plan:file=/none/plan.json' '/none/plan.json'
answer 1 'gradcomp|schedule = fixed:bytes=25X' 'gradcomp.schedule'
answer 1 'auto|candidates = none,tokp:density=0.1' "tokp"
answer 1 'auto|candidates = none,topk:density=7' 'density'
answer 1 'auto|candidates = none,topk@rnig' 'rnig'
answer 1 'gradcomp|compressor = auto:allow=tokp' "compressor 'tokp' is not installed (did you mean 'topk'?)"
answer 1 'gradcomp|compressor = auto:deny=topk:density' "is not a compressor's name"
answer 1 'auto|deny = topk' "unknown key 'deny' in section [auto]"
# ---- what is typed
answer 1 'gradcomp|compressor = "topk"' 'is a quote, which would be part of the value'
answer 1 "gradcomp|report = '/shared/%j.json'" 'is a quote'
answer 1 "gradcomp|compressor = topk$nbsp" "there is a no-break space (U+00A0) behind 'topk', which cannot be seen"
answer 1 "gradcomp|compressor$nbsp= topk" "a no-break space (U+00A0) in the key 'compressor'"
answer 1 "gradcomp$zero|compressor = topk" "a zero-width space (U+200B) in the section 'gradcomp'"
answer 1 "stage|cache_dir = $zero/var/tmp/x" "a zero-width space (U+200B) before '/var/tmp/x'"
answer 1 $'gradcomp|compressor = to\rpk' 'control character (0x0d)'
answer 1 'gradcomp|compresor = topk' "(did you mean 'gradcomp.compressor'?)"
answer 1 'gradcmp|compressor = topk' 'unknown section [gradcmp]'
answer 1 'gradcomp|compressor = topk|compressor = none' 'was given in line 2 already'
answer 1 'gradcomp|compressor = topk:density=0,1' 'gradcomp.compressor'
answer 1 'gradcomp|compressor' 'conf:2'
answer 1 'gradcomp|auto_attach = maybe' 'gradcomp.auto_attach'
answer 1 'gradcomp|on_failure = shrnk' 'gradcomp.on_failure'
answer 1 'gradcomp|lock = transport.timout' 'transport.timout'
answer 1 'gradcomp|plugin_path = plugins' 'is not an absolute path'
# ---- numbers
answer 1 'transport|timeout = 30s' 'transport.timeout'
answer 1 'transport|timeout = -1' 'transport.timeout'
answer 1 'transport|streams = 2.5' 'transport.streams'
answer 1 'reducer|bucket_bytes = 25 MB' 'reducer.bucket_bytes'
answer 1 'transport|chunk = 1M' "unknown key 'chunk' in section [transport]"
answer 1 'transport|timeout = 60|wait_timeout = 30' 'it is less than transport.timeout, 60'
answer 1 'stage|evict = 80,95' 'stage.evict'
# ---- places
answer 1 'transport|interface = eth0,eth1' 'is several; name one interface'
answer 1 'transport|interface = eth0 eth1' 'is several; name one interface'
answer 0 'transport|interface = nosuch0' 'note: transport.interface = nosuch0'
answer 1 'transport|allow = tcp,infiniband' 'infiniband'
answer 1 'transport|allow = tcp|verbs_device = mlx5_0' 'has no verbs'
answer 1 'stage|cache_dir = /' 'is no directory for a cache: name one below /'
answer 1 "stage|cache_dir = $tmp/file" 'is no directory'
answer 1 'stage|cache_dir = scratch/cache' 'is not an absolute path'
answer 1 'stage|shared_user = nosuchuser' 'there is no such account'
answer 1 'stage|shared = imagenet' 'neither an absolute path'
answer 1 'stage|prolog = yes' 'stage.shared names nothing'
answer 1 'security|secret = file:/none/key' 'cannot read /none/key'
answer 0 'gradcomp|report = /none/%j.json' 'there is no directory /none here'
# ---- the environment
variable $'GRADCOMP=topk\r' "GRADCOMP: gradcomp.compressor: there is a carriage return"
variable 'GRADCOMP="topk"' 'is a quote'
variable 'GRADCOMP=topk:density=2' 'density'
variable 'GRADCOMP_COMPRESSOR=topk' 'the variable for the compressor is GRADCOMP'
variable 'GRADCOMP_COLECTIVE=ring' "did you mean 'GRADCOMP_COLLECTIVE'"
variable 'GRADCOMP_STAGE_SHARED=/x' 'can be set in gradcomp.conf only'
check "there are fifty and more" test "$number" -ge 50

# ---- what is right
for right in 'gradcomp|compressor = topk:density=0.01|collective = ring' 'gradcomp|compressor = auto' \
	'auto|candidates = none,topk:density=0.01@ring,powersgd:rank=2' \
	'gradcomp|compressor = powersgd:rank=4 ; for all' 'transport|interface = 10.0.0.0/8' 'stage|cache_dir = /var/tmp/x y' \
	"gradcomp|report = $tmp/dir/%j.json" 'stage|shared_user = nobody'; do
	printf '[%s\n' "${right//|/$'\n'}" | sed '1s/$/]/' > "$tmp/conf"
	is "$right" "$("$gradcomp" config --check 2>&1; echo $?)" 0
done
printf '[gradcomp]\r\ncompressor = topk\r\n' > "$tmp/conf"
is 'lines that end as in Windows' "$("$gradcomp" config --check 2>&1; echo $?)" 0
done_testing
