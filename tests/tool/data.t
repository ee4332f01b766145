#!/bin/bash
# What gradcomp data check says of datasets as they lie about.
# shellcheck source=tests/tool/tool.sh
. "$GRADCOMP_SRC/tests/tool/tool.sh"
cd "$tmp" || exit 1

look () { said=$("$gradcomp" data "$@" 2>&1) && status=0 || status=$?; }

mkdir -p pairs real/train/cat real/train/dog real/val/cat
for i in 0 1 2 3 4 5 6 7 8 9; do
	echo "picture $i" > "pairs/$i.jpg"
	echo "$i" > "pairs/$i.cls"
done
touch real/train/cat/1.jpg real/val/cat/2.jpg
echo x > real/train/cat/3.jpg
# shellcheck disable=SC2046
tar -C pairs -cf unsorted.tar $(cd pairs && echo ./*.jpg ./*.cls)
tar -C pairs --sort=name -cf sorted.tar .

look check unsorted.tar
is "an archive of an unsorted folder is refused" "$status" 1
like "... by name, with the remedy" "$said" "other parts of the sample ./0 stand before it, apart: each would be a sample of its own; make the archive anew with tar --sort=name"
look check sorted.tar
is "a sorted one is read" "$status: $said" "0: sorted.tar: tar shards, 10 samples
part cls: 10 samples, 20 bytes
part jpg: 10 samples, 100 bytes
labels: 0 to 9, 0 samples without"

look check real
is "a root above splits is refused" "$status" 1
like "... with the two names" "$said" "real holds the folders train and val, which are splits and not classes"
like "... and what each would be" "$said" "real/train: a folder of files, 2 samples"
look check real/train
is "a folder of classes, one of them empty" "$status: $said" "0: real/train: a folder of files, 2 samples
part \"\": 2 samples, 2 bytes
classes: 2, cat dog, 0 to 2 samples each
labels: 0 to 0, 0 samples without
note: cat/1.jpg is empty
note: the class dog has no sample"
look check --format=folder real
like "that they are classes can be said" "$said" "classes: 2, train val, 1 to 2 samples each"

echo cat > pairs/0.cls
rm pairs/1.cls
tar -C pairs --sort=name -cf holes.tar .
look check '{sorted,holes}.tar'
is "a list with what may not be meant" "$status: $said" "0: {sorted,holes}.tar: tar shards, 20 samples
part cls: 19 samples, 40 bytes
part jpg: 20 samples, 200 bytes
labels: 0 to 9, 2 samples without
note: the part cls of ./0 is no number: it has no label
note: 1 of 20 samples have no part cls; the first is ./1"
look check --json holes.tar
check "as JSON" python3 -c 'import json, sys
d = json.loads(sys.argv[1])
assert d["samples"] == 10 and d["without_label"] == 2 and len(d["notes"]) == 2, d
assert d["parts"][0] == {"name": "cls", "samples": 9, "bytes": 20}, d' "$said"

printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' > real/train/dog/4.jpg
look check real/train
like "a pointer of Git LFS in the place of a file" "$status: $said" "1: gradcomp: dog/4.jpg is a Git LFS pointer, not what it points to: run git lfs pull"
look check --format=tree sorted.tar
like "a format that there is not" "$status: $said" "it can be auto, folder or tar"
look look sorted.tar
like "another thing to do" "$status: $said" "there is one thing to do, check, not look"
done_testing
