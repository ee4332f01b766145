/* Nodes that stage together and what goes wrong on one of them: all learn it, by name and
 * soon, nothing is published, and the next run goes on with what is there. */
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "tests/support/pace.h"
#include "tests/support/stage_group_fixture.h"

#define MIB (1u << 20)

enum fault { NONE, UNREADABLE, FULL, DAMAGED, DEATH, UNPUBLISHED };
static enum fault fault;
static int faulty = -1;        /* rank */
static atomic_int fault_after; /* calls that still go well */

static int strikes(enum fault f)
{
	return fault == f && group_rank == faulty && atomic_fetch_sub(&fault_after, 1) <= 0;
}

ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
	if (strikes(UNREADABLE)) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pread64, fd, buf, n, at);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
	if (strikes(FULL)) {
		errno = ENOSPC;
		return -1;
	}
	if (strikes(DEATH))
		raise(SIGKILL);
	return syscall(SYS_pwrite64, fd, buf, n, at);
}

int renameat2(int from, const char *a, int to, const char *b, unsigned flags)
{
	if (strikes(UNPUBLISHED)) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_renameat2, from, a, to, b, flags);
}

/* A byte of what is sent is another, in a copy: this node's own stays right. */
ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
	static unsigned char copy[2 * MIB];
	struct msghdr other = *m;
	struct iovec iov;
	size_t n = 0;
	for (size_t i = 0; i < m->msg_iovlen; i++)
		n += m->msg_iov[i].iov_len;
	if (n < 100000 || n > sizeof copy || !strikes(DAMAGED))
		return syscall(SYS_sendmsg, fd, m, flags);
	for (size_t i = 0, at = 0; i < m->msg_iovlen; at += m->msg_iov[i++].iov_len)
		memcpy(copy + at, m->msg_iov[i].iov_base, m->msg_iov[i].iov_len);
	copy[n / 2] ^= 1;
	iov = (struct iovec){copy, n};
	other.msg_iov = &iov;
	other.msg_iovlen = 1;
	return syscall(SYS_sendmsg, fd, &other, flags);
}

static void set_fault(enum fault f, int rank, int after)
{
	fault = f;
	faulty = rank;
	atomic_store(&fault_after, after);
}

static void make_source(int files)
{
	char name[64];
	must(system("chmod -R u+w src; rm -rf src; mkdir -p src/d"), "source");
	for (int i = 0; i < files; i++) {
		snprintf(name, sizeof name, "src/d/%02d", i);
		put_random(name, i % 5 ? 300000 : 2 * MIB + 77);
	}
}

/* A fault of one node: the status, words of it and who it was, on all of them. */
static void one_fails(const char *name, gradcomp_status want, const char *words, int P)
{
	int same = 1, named = 1, slow = 0;
	for (int r = 0; r < P; r++) {
		same &= group_out[r].status == want && strstr(group_out[r].error.text, words);
		named &= r == faulty || strstr(group_out[r].error.text, "node ");
		slow |= !in_time(group_out[r].seconds, 10);
		if (group_out[r].status != want)
			printf("# rank %d: %d %s\n", r, group_out[r].status, group_out[r].error.text);
	}
	ok(same, "%s: all %d fail alike: %s", name, P, group_out[!faulty].error.text);
	ok(named && !slow, "%s: the others know which node, and soon", name);
	is_int(in_caches("cache?", "[0-9a-f]"), 0, "nothing is published");
}

static void then_well(int P)
{
	uint64_t bytes = 0;
	set_fault(NONE, -1, 0);
	group_hook_call = NULL;
	group_stage(P);
	is_int(group_failed(P), 0, "the next run succeeds%s%s", why.text[0] ? ": " : "", why.text);
	ok(group_whole(P) && !in_caches("cache?", ".tmp"), "and all have it, and nothing half");
	bytes = group_out[0].result.bytes;
	ok(GROUP_SUM(P, read) <= bytes, "it reads %llu of %llu bytes, and finds %llu there",
	   (unsigned long long)GROUP_SUM(P, read), (unsigned long long)bytes,
	   (unsigned long long)GROUP_SUM(P, resumed));
}

static void unreadable(void)
{
	for (int P = 2; P <= 4; P++) {
		make_source(20);
		group_clear();
		set_fault(UNREADABLE, P - 1, 6 / P);
		group_stage(P);
		one_fails("a file that cannot be read", GRADCOMP_ERR_IO, "cannot read d/", P);
		then_well(P);
	}
}

static void full(void)
{
	make_source(20);
	group_clear();
	set_fault(FULL, 2, 9);
	group_stage(4);
	one_fails("a full disk", GRADCOMP_ERR_IO, "no space: the dataset needs", 4);
	ok(system("ls -d cache2/*/*.tmp 2>/dev/null >&2"), "the full node keeps nothing");
	is_int(in_caches("cache?", ".tmp"), 3, "the others keep what they have");
	then_well(4);
}

static void damaged(void)
{
	make_source(20);
	group_clear();
	set_fault(DAMAGED, 1, 3);
	group_stage(3);
	one_fails("a piece that was damaged", GRADCOMP_ERR_MISMATCH, "came damaged from node ", 3);
	then_well(3);
}

static void death(void)
{
	int P = 4, told = 1, soon = 1;
	for (int i = 0; i < 3; i++) {
		make_source(20);
		group_clear();
		set_fault(DEATH, i, i ? 1 + rand() % 20 : 19);
		ok(!group_stage(P), "node %d is killed while it writes", faulty);
		for (int r = 0; r < P; r++) {
			if (r == faulty)
				continue;
			told &= group_out[r].status == GRADCOMP_ERR_PEER && strstr(group_out[r].error.text, "rank ");
			soon &= in_time(group_out[r].seconds, 10);
			if (group_out[r].status != GRADCOMP_ERR_PEER)
				printf("# rank %d: %d %s\n", r, group_out[r].status, group_out[r].error.text);
		}
		ok(told && soon, "the others are told soon: %s", group_out[3].error.text);
		is_int(in_caches("cache?", "[0-9a-f]"), 0, "nothing is published");
		then_well(P);
		ok(i || GROUP_SUM(P, resumed), "what was whole is not copied again");
	}
}

static void unpublished(void)
{
	make_source(20);
	group_clear();
	set_fault(UNPUBLISHED, 1, 0);
	group_stage(3);
	ok(group_out[0].status == GRADCOMP_ERR_IO && strstr(group_out[2].error.text, "node 1 "),
	   "a node that cannot publish fails all: %s", group_out[2].error.text);
	is_int(in_caches("cache?", "[0-9a-f]"), 2, "the others keep what they have published");
	then_well(3);
	is_int(GROUP_SUM(3, read), 0, "and give it to that node");
}

/* The first node's user wants to stop when a little has been copied. */
static int wants_stop(void *ctx, const gradcomp_stage_progress *p)
{
	(void)ctx;
	return p->phase == GRADCOMP_STAGE_COPY;
}

static void stopped(void)
{
	make_source(20);
	group_clear();
	group_hook_rank = faulty = 1;
	group_hook_call = wants_stop;
	group_stage(3);
	one_fails("a user who stops", GRADCOMP_ERR_STATE, "stopped", 3);
	is_int(in_caches("cache?", ".tmp"), 0, "and nothing stays");
	then_well(3);
}

/* While the files are copied one is written to, once. */
static int writes(void *ctx, const gradcomp_stage_progress *p)
{
	static int done;
	(void)ctx;
	if (p->phase == GRADCOMP_STAGE_COPY && !done++) {
		put_random("src/d/17", 300001);
		put("src/d/new", "new");
	}
	return 0;
}

static void changes(void)
{
	make_source(20);
	group_clear();
	group_hook_rank = 2;
	group_hook_call = writes;
	group_stage(4);
	group_hook_call = NULL;
	is_int(group_failed(4), 0, "a source that changes meanwhile: %s", why.text);
	ok(group_whole(4), "all start again and have it as it is now");
}

/* Two jobs of the same nodes, and of others that overlap, at once. */
static void two_jobs(void)
{
	make_source(12);
	group_clear();
	fflush(NULL);
	pid_t other = fork();
	if (!other) {
		group_stage(3);
		_exit(group_failed(3) || !group_whole(3) ? 1 : 0);
	}
	group_stage(4);
	int status = -1;
	waitpid(other, &status, 0);
	is_int(group_failed(4), 0, "two jobs at once: the first: %s", why.text);
	is_int(status, 0, "and the second");
	ok(group_whole(4) && !in_caches("cache?", ".tmp") && !in_caches("cache?", ".lock"),
	   "all have it, and nothing else stays");
}

int main(void)
{
	bench_begin_in("/dev/shm");
	group_options = (gradcomp_stage_options){.source = "src"};
	unreadable();
	full();
	damaged();
	death();
	unpublished();
	stopped();
	changes();
	two_jobs();
	return done_testing();
}
