/* Many nodes that stage together, as processes of this machine: chunks go down trees of several levels,
 * all have all of it, and what goes wrong on one is known to all. */
#include <sys/syscall.h>

#include "tests/support/pace.h"
#include "tests/support/stage_group_fixture.h"

#define MIB (1u << 20)
#define NODES 24 /* more than a ring of 16 */

enum fault { NONE, FULL, DEATH };
static enum fault fault;
static int faulty = -1;
static atomic_int fault_after;

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
	if (fault != NONE && group_rank == faulty && atomic_fetch_sub(&fault_after, 1) <= 0) {
		if (fault == DEATH)
			raise(SIGKILL);
		errno = ENOSPC;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, buf, n, at);
}

/* Many chunks of few bytes: files with holes. */
static void make_source(int files)
{
	char name[64];
	must(system("chmod -R u+w src 2>/dev/null; rm -rf src; mkdir -p src/d"), "source");
	for (int i = 0; i < files; i++) {
		snprintf(name, sizeof name, "src/d/%03d", i);
		int fd = open(name, O_WRONLY | O_CREAT, 0644);
		char bytes[5000];
		for (size_t k = 0; k < sizeof bytes; k++)
			bytes[k] = (char)rand();
		must(fd < 0 || ftruncate(fd, 2 * MIB + i) ||
		                     pwrite(fd, bytes, sizeof bytes, i * 4099) != sizeof bytes || close(fd)
		             ? -1
		             : 0,
		     name);
	}
	put_random("src/small", 4711);
}

static int alike(int P, gradcomp_status want, const char *words)
{
	int well = 1;
	for (int r = 0; r < P; r++)
		if (r != faulty || fault == FULL) {
			int same = group_out[r].status == want && strstr(group_out[r].error.text, words);
			if (!same && well)
				printf("# rank %d: %d %s\n", r, group_out[r].status, group_out[r].error.text);
			well &= same;
		}
	return well;
}

static void all_have_all(int P, int files)
{
	double slowest = 0;
	make_source(files);
	group_clear();
	group_options = (gradcomp_stage_options){.source = "src"};
	int well = group_stage(P);
	is_int(group_failed(P), 0, "%d nodes%s%s", P, why.text[0] ? ": " : "", why.text);
	for (int r = 0; r < P; r++)
		slowest = group_out[r].seconds > slowest ? group_out[r].seconds : slowest;
	ok(well && group_whole(P), "all have all of it (%.2f s)", slowest);
	ok(GROUP_SUM(P, read) < 2 * (uint64_t)files * 9000, "each byte is read once");
}

/* Those that have it give it to the others, few or many of them. */
static void some_have_it(void)
{
	static const char *const lose[] = {"cache[0-4]", "cache[0-9] cache1[0-9]"};
	for (int i = 0; i < 2; i++) {
		char command[256];
		snprintf(command, sizeof command, "for c in %s; do chmod -R u+w $c/%u; rm -rf $c/%u/*; done", lose[i],
		         geteuid(), geteuid());
		must(system(command), "lose copies");
		group_stage(NODES);
		is_int(group_failed(NODES), 0, "%d of %d nodes lost theirs%s%s", i ? 20 : 5, NODES,
		       why.text[0] ? ": " : "", why.text);
		ok(group_whole(NODES) && !GROUP_SUM(NODES, read), "they get it from the others");
	}
}

static void one_is_full(void)
{
	fault = FULL;
	for (faulty = 0; faulty < NODES; faulty += 17) {
		atomic_store(&fault_after, 10);
		group_clear();
		group_stage(NODES);
		double slowest = 0;
		for (int r = 0; r < NODES; r++)
			slowest = group_out[r].seconds > slowest ? group_out[r].seconds : slowest;
		ok(alike(NODES, GRADCOMP_ERR_IO, "no space"), "node %d has no space: all fail alike: %s", faulty,
		   group_out[!faulty].error.text);
		ok(in_time(slowest, 10) && !in_caches("cache*", "[0-9a-f]"), "soon (%.2f s), and nothing is published",
		   slowest);
	}
	fault = NONE;
	group_stage(NODES);
	ok(!group_failed(NODES) && group_whole(NODES) && !in_caches("cache*", ".tmp"), "the next run has it all");
}

static void one_dies(void)
{
	fault = DEATH;
	faulty = 17;
	atomic_store(&fault_after, 10);
	group_clear();
	group_stage(NODES);
	ok(alike(NODES, GRADCOMP_ERR_PEER, "rank 17 "), "a stager dies: %s", group_out[0].error.text);
	is_int(in_caches("cache*", "[0-9a-f]"), 0, "nothing is published");
	fault = NONE;
	group_stage(NODES);
	ok(!group_failed(NODES) && group_whole(NODES), "the next run has it all");
}

int main(int argc, char **argv)
{
	bench_begin_in("/dev/shm");
	srand((unsigned)getpid());
	if (argc > 1) { /* nodes, files: how long it takes */
		all_have_all(atoi(argv[1]), argc > 2 ? atoi(argv[2]) : 100);
		return done_testing();
	}
	all_have_all(NODES, 40);
	some_have_it();
	one_is_full();
	one_dies();
	return done_testing();
}
