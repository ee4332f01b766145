#!/bin/bash
# doc/user/tutorial.md, typed word for word: its program, its commands in their order, and what it shows of their
# output, with other numbers and paths. Its first block, which installs a wheel, is tests/build/wheel.t's: here python3
# and gradcomp are those of the machine and of the build. torchrun is that of python3's PyTorch, which may be so old
# that it writes its options otherwise.
# shellcheck source-path=SCRIPTDIR
. "$(dirname "$0")/common.sh"

/usr/bin/python3 -c 'import torch.distributed.run' 2> /dev/null || skip_all 'no PyTorch for /usr/bin/python3'
/usr/bin/python3 -c 'import torch.distributed as d; d.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)' 2>&1 | grep -q libuv &&
	skip_all 'this PyTorch was built without the libuv that its torchrun asks for'
real_jobs
page=$GRADCOMP_SRC/doc/user/tutorial.md
cd run || exit 1
mkdir "$tmp/typed"
ln -s /usr/bin/python3 "$tmp/bin/gradcomp" "$tmp/typed"
cat > "$tmp/typed/torchrun" << END
#!/bin/sh
shift
n=\$1
shift
exec /usr/bin/python3 -m torch.distributed.run --nproc_per_node "\$n" --redirects 1 --tee 1 --log_dir "$tmp/log" "\$@"
END
chmod 755 "$tmp/typed/torchrun"
export PATH=$tmp/typed:$PATH PYTHONPATH=$tmp/lib/gradcomp/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export GRADCOMP_LIBRARY=$tmp/lib/libgradcomp.so
# shellcheck disable=SC2016 # backticks of Markdown
sed -n '/^```python$/,/^```$/p' "$page" | sed '1d;$d' > train.py
check 'the page has a program' test -s train.py

# shape: lines without numbers, paths, and what torchrun puts before a line.
shape () { sed -E 's/^\[[a-z]+[0-9]\]:? ?//; s|/[a-z0-9/._-]+|PATH|g; s/[0-9]+(\.[0-9]+)?/N/g; s/N(, ?N)*/N/g; s/PATH(:PATH)*/PATH/g'; }
where=laptop typed=0
# one COMMAND: typed where the page says; what follows on the page is in its output.
one () {
	typed=$((typed + 1))
	if [ "$where" = laptop ]; then
		said=$(timeout "$(scaled 120)" bash -c "$1" 2>&1)
	else
		said=$(on sh -c "cd $tmp/run && exec $1" 2>&1)
	fi
	tap_status=$?
	case $1 in *powersdg*) [ $tap_status != 0 ] ;; *) [ $tap_status = 0 ] ;; esac
	tap_result $? "$where: $1" || note "$(tail -n 20 <<< "$said")"
	shape <<< "$said" > "$tmp/got"
}
# shellcheck disable=SC2016 # as above
while IFS= read -r line; do
	case $line in
	'## On a cluster') where=cluster ;;
	'    $ '*) one "${line#    \$ }" < /dev/null ;;
	'    ...' | '    python3 -m venv'* | '    pip '*) ;;
	'    '*)
		line=${line#    } line=${line%, ...}
		grep -qF -e "$(shape <<< "$line")" "$tmp/got"
		tap_result $? "$where: prints $(cut -c 1-60 <<< "$line")" || note "$(tail -n 20 <<< "$said")"
		;;
	esac
done < <(sed '/^```python$/,/^```$/d' "$page")
is 'every command was typed' "$typed" "$(grep -c '^    \$ ' "$page")"
check 'the page is there' test -s page.html
all_idle 'every node is idle'
done_testing
