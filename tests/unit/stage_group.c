/* Nodes that stage together: the source is read once, every node has all of it, and
 * those who have a copy give it to those who have none. */
#include "tests/support/stage_group_fixture.h"

#define MIB (1u << 20)

/* Trees of all sorts, by number. */
static uint64_t make_tree(int kind)
{
	char name[300];
	must(system("chmod -R u+w src; rm -rf src; mkdir src"), "source");
	srand((unsigned)kind + 1);
	switch (kind) {
	case 0: /* nothing at all */
		return 0;
	case 1: /* one file, larger than everything */
		put_random("src/large", 5 * MIB + 4321);
		return 5 * MIB + 4321;
	case 2: /* many small ones, some of no bytes */
		for (int i = 0; i < 700; i++) {
			snprintf(name, sizeof name, "src/%03d", i);
			put_random(name, (size_t)i % 50 ? (size_t)i % 50 * 37 : 0);
		}
		break;
	default: /* everything */
		must(system("mkdir -p src/d/e src/empty"), "folders");
		for (int i = 0; i < 40; i++) {
			snprintf(name, sizeof name, "src/d/%d \001\\ x", i);
			put_random(name, (size_t)rand() % (3 * MIB / 2));
		}
		put_random("src/d/e/two blocks", 2 * MIB);
		put_random("src/one block", MIB);
		put_random("src/one more", MIB + 1);
		must(link("src/one block", "src/d/e/linked"), "link");
		must(symlink("../one more", "src/d/pointer"), "symlink");
		must(chmod("src/d/e", 0555), "mode");
	}
	FILE *f = popen("find src -type f -printf '%i %s\\n' | sort -u | awk '{ n += $2 } END { print n + 0 }'", "r");
	unsigned long long bytes = 0;
	must(f && fscanf(f, "%llu", &bytes) == 1 ? 0 : -1, "sum");
	pclose(f);
	return bytes;
}

static void all_sorts(void)
{
	static const char *const names[] = {"an empty directory", "one large file", "700 small files", "a tree"};
	group_options = (gradcomp_stage_options){.source = "src"};
	for (int P = 1; P <= 5; P += 1 + (P > 2))
		for (int kind = 0; kind < 4; kind++) {
			uint64_t bytes = make_tree(kind);
			group_clear();
			int well = group_stage(P);
			is_int(group_failed(P), 0, "%s on %d nodes%s%s", names[kind], P, why.text[0] ? ": " : "",
			       why.text);
			ok(well && group_whole(P), "%s: whole on each of %d", names[kind], P);
			is_int(GROUP_SUM(P, read), bytes, "%s: each byte is read once", names[kind]);
			ok(!group_out[0].result.cached && group_out[P - 1].result.node == (uint32_t)P - 1 &&
			           group_out[0].result.nnodes == (uint32_t)P,
			   "and each node knows its place");
		}
}

static void again(void)
{
	uint64_t bytes = make_tree(3);
	char command[128];
	double slowest = 0;
	group_clear();
	group_stage(4);
	group_stage(4);
	is_int(group_failed(4), 0, "the second time");
	for (int r = 0; r < 4; r++)
		slowest = group_out[r].seconds > slowest ? group_out[r].seconds : slowest;
	ok(group_out[0].result.cached && group_out[3].result.cached && !GROUP_SUM(4, read) && !GROUP_SUM(4, received),
	   "nothing is read or sent (%.3f s)", slowest);

	snprintf(command, sizeof command, "chmod -R u+w cache1 cache2; rm -rf cache1/%u/* cache2/%u/*", geteuid(),
	         geteuid());
	must(system(command), "lose copies");
	group_stage(4);
	is_int(group_failed(4), 0, "two nodes lost theirs");
	ok(group_whole(4), "they are whole again");
	is_int(GROUP_SUM(4, read), 0, "from the others, not from the source");
	/* A ring brings also those pieces by that are not wanted. */
	ok(group_out[1].result.received == bytes && !group_out[0].result.cached, "each piece came by once");
}

/* The first two nodes have a copy of what another node has never seen. */
static void contents(void)
{
	struct stat st;
	make_tree(3);
	group_clear();
	group_options = (gradcomp_stage_options){.source = "src"};
	group_stage(3);
	must(stat("src/one more", &st), "stat");
	put_random("src/one more", MIB + 1);
	const struct timespec times[2] = {st.st_mtim, st.st_mtim};
	must(utimensat(AT_FDCWD, "src/one more", times, 0), "times");
	group_stage(3);
	ok(group_out[1].result.cached && !group_whole(3), "contents exchanged behind the back of size and time");
	group_options.flags = GRADCOMP_STAGE_CONTENT;
	group_stage(3);
	is_int(group_failed(3), 0, "are noticed where that is asked for");
	ok(!group_out[1].result.cached && group_whole(3), "and staged anew");
	group_stage(3);
	ok(!group_failed(3) && group_out[1].result.cached && group_whole(3), "and compared once more");
	/* Node 2 stages alone what was exchanged again. */
	char command[128];
	snprintf(command, sizeof command, "chmod -R u+w cache2; rm -rf cache2/%u/*", geteuid());
	must(system(command), "lose a copy");
	put_random("src/one more", MIB + 1);
	must(utimensat(AT_FDCWD, "src/one more", times, 0), "times");
	snprintf(command, sizeof command, "%s/cache2", bench_dir);
	setenv("GRADCOMP_STAGE_CACHE_DIR", command, 1);
	is_int(stage(), 0, "a node that stages alone");
	group_options.flags = 0;
	group_stage(3);
	is_int(group_failed(3), 0, "then all together");
	must(chdir("cache0"), "cache");
	is_int(system("for i in 1 2; do diff -r . ../cache$i --exclude=used --exclude='*.lock'; done >&2"), 0,
	       "copies are all the same");
	must(chdir(".."), "back");
}

static void shards(void)
{
	make_tree(3);
	group_clear();
	group_options = (gradcomp_stage_options){.source = "src", .mode = GRADCOMP_STAGE_SHARD};
	group_stage(3);
	is_int(group_failed(3), 0, "shards");
	uint64_t files = GROUP_SUM(3, files), read = GROUP_SUM(3, read), bytes = GROUP_SUM(3, bytes);
	is_int(files, 44, "each file is on one node");
	ok(read == bytes && !GROUP_SUM(3, received), "which reads it");
	ok(strcmp(group_out[0].result.key, group_out[1].result.key), "under a key of its own");
	must(system("mkdir sum; for i in 0 1 2; do cp -a cache$i/*/*/data/. sum; done; rm -f list"), "sum");
	is_int(system("diff -r --no-dereference src sum >&2"), 0, "together they are the dataset");
	must(system("chmod -R u+w sum; rm -r sum"), "clear");
	group_stage(3);
	ok(!group_failed(3) && group_out[2].result.cached && !GROUP_SUM(3, read), "they are found again");
	group_options.mode = GRADCOMP_STAGE_FULL;
	group_stage(3);
	ok(!group_failed(3) && !group_out[2].result.cached && group_whole(3), "and never taken for the whole");
	group_options.mode = GRADCOMP_STAGE_LINK;
	group_stage(3);
	ok(!group_failed(3) && strstr(group_out[2].result.path, "/src") && group_out[2].result.files == 44,
	   "mode link gives the source");
}

/* A file of which most is not there, and one that ends with a hole. */
static void holes(void)
{
	must(system("chmod -R u+w src; rm -rf src; mkdir src; truncate -s 20M src/sparse; truncate -s 3000001 src/tail; "
	            "truncate -s 300K src/small; "
	            "for at in 0 1000 3001 5119; do head -c 2000 /dev/urandom | dd of=src/sparse bs=4096 seek=$at conv=notrunc "
	            "2>/dev/null; done; head -c 5 /dev/urandom | dd of=src/tail conv=notrunc 2>/dev/null"),
	     "source");
	group_clear();
	group_options = (gradcomp_stage_options){.source = "src"};
	group_stage(3);
	is_int(group_failed(3), 0, "files with holes%s%s", why.text[0] ? ": " : "", why.text);
	ok(group_whole(3), "are whole");
	uint64_t read = GROUP_SUM(3, read), received = GROUP_SUM(3, received);
	ok(read < 1000000 && received < 2000000, "of 23 MB %llu bytes are read, %llu sent", (unsigned long long)read,
	   (unsigned long long)received);
	int same = 1;
	for (int r = 0; r < 3; r++) {
		struct stat st = {0};
		char path[4200];
		snprintf(path, sizeof path, "%s/sparse", group_out[r].result.path);
		same &= stat(path, &st) == 0 && st.st_blocks * 512 <= 5 * 4096;
	}
	ok(same, "and the holes are holes");
}

/* Looking only; and nodes that do not want the same. */
static void others(void)
{
	make_tree(3);
	group_clear();
	group_options = (gradcomp_stage_options){.source = "src", .flags = GRADCOMP_STAGE_DRY_RUN};
	group_stage(3);
	ok(!group_failed(3) && group_out[2].result.files == 44 && !in_caches("cache?", "data"),
	   "a dry run: looks, and makes nothing");
	is_int(in_caches("cache?", "[0-9a-f]"), 0, "on no node");
	group_options = (gradcomp_stage_options){.source = "src"};
	group_odd_rank = 1;
	group_stage(3);
	ok(group_out[0].status == GRADCOMP_ERR_MISMATCH && group_out[1].status == GRADCOMP_ERR_MISMATCH,
	   "nodes that want other things are told: %s", group_out[0].error.text);
	group_odd_rank = -1;
}

/* Two ranks a node: one of them acts. */
static void local_ranks(void)
{
	static const int nodes[] = {0, 0, 1, 1};
	uint64_t bytes = make_tree(2);
	group_clear();
	group_options = (gradcomp_stage_options){.source = "src"};
	group_own_nodes = 0;
	processes_on(nodes);
	group_stage(4);
	is_int(group_failed(4), 0, "two ranks on each of two nodes");
	ok(group_whole(4) && !strcmp(group_out[0].result.path, group_out[1].result.path), "have one path a node");
	is_int(group_out[0].result.read + group_out[2].result.read, bytes, "each byte is read once");
	ok(group_out[3].result.node == 1 && group_out[3].result.nnodes == 2, "and the ranks know their node");
	group_options.source = "nowhere";
	group_stage(4);
	ok(group_out[1].status == GRADCOMP_ERR_NOTFOUND && group_out[3].status == GRADCOMP_ERR_NOTFOUND,
	   "a failure is all ranks'");
	group_own_nodes = 1;
}

int main(void)
{
	bench_begin_in("/dev/shm");
	all_sorts();
	again();
	contents();
	shards();
	holes();
	others();
	local_ranks();
	return done_testing();
}
