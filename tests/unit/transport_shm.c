/* Memory shared by the ranks of a node: how much of it, where it lies, and that
 * nothing is left of it when all of them are killed. */
#define _GNU_SOURCE
#include "tests/support/transport_ranks.h"

#include "base/thread.h"
#include "transport/link/link.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_memory.h"

#include <dirent.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>

#define RANKS 3
#define INODES 64

static void ring_sizes(void)
{
	static const struct {
		int ranks;
		uint32_t ring;
	} want[] = {{1, 1 << 20},    {2, 1 << 20},    {16, 1 << 20},   {17, 512 << 10},
	            {64, 256 << 10}, {256, 64 << 10}, {4096, 64 << 10}};

	for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
		transport t = {.peers = {.nlocal = want[i].ranks}};

		is_int(shm_ring_bytes(&t), want[i].ring, "rings on a node of %d ranks", want[i].ranks);
	}
}

static void pin(int cpu)
{
	cpu_set_t one;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof one, &one);
}

/* Every memory node there is here is asked for, from one of its CPUs. */
static void near_the_reader(void)
{
	size_t bytes = 1 << 20;
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	unsigned long mask[16] = {0};
	cpu_set_t all;
	int mode = -1;
	ok(shm_numa_nodes() >= 1, "there are %d memory nodes", shm_numa_nodes());
	if (shm_numa_near(p, bytes)) {
		skip("this kernel has no memory policies or forbids them", "shared memory near its reader");
		munmap(p, bytes);
		return;
	}
	if (syscall(SYS_get_mempolicy, &mode, mask, 8 * sizeof mask, (char *)p + 4096, MPOL_F_ADDR))
		mode = -1;
	is_int(mode, MPOL_PREFERRED, "the memory has a preferred node");
	sched_getaffinity(0, sizeof all, &all);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		unsigned node, on = ~0u;

		if (!CPU_ISSET(cpu, &all))
			continue;
		pin(cpu);
		getcpu(NULL, &node);
		munmap(p, bytes);
		p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		shm_numa_near(p, bytes);
		memset(p, 1, bytes);
		if (syscall(SYS_get_mempolicy, &on, NULL, 0ul, (char *)p + bytes / 2, MPOL_F_NODE | MPOL_F_ADDR))
			on = ~0u;
		is_int(on, node, "CPU %d: a page lies on its node", cpu);
	}
	sched_setaffinity(0, sizeof all, &all);
	munmap(p, bytes);
	ok(shm_numa_near(MAP_FAILED, 4096) < 0, "what is no memory is refused");
}

/* The inodes of the job's shared memory that a process maps. */
static int mapped(const char *pid, uint64_t inode[INODES])
{
	char path[300], line[500];
	int n = 0;
	FILE *f;
	snprintf(path, sizeof path, "/proc/%s/maps", pid);
	f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f)) {
		unsigned long long number;

		if (n < INODES && strstr(line, "/memfd:gradcomp") && sscanf(line, "%*s %*s %*s %*s %llu", &number) == 1)
			inode[n++] = number;
	}
	if (f)
		fclose(f);
	return n;
}

/* How many processes of this machine map one of them. */
static int mapping(const uint64_t *ours, int n)
{
	DIR *d = opendir("/proc");
	uint64_t inode[INODES];
	int found = 0;
	for (struct dirent *e; d && (e = readdir(d));)
		for (int k = e->d_name[0] >= '1' && e->d_name[0] <= '9' ? mapped(e->d_name, inode) : 0; k > 0; k--)
			for (int i = 0; i < n; i++)
				found += inode[k - 1] == ours[i];
	if (d)
		closedir(d);
	return found;
}

/* Lines of a file of /proc that hold the text. */
static int lines(const char *path, const char *text)
{
	char line[500];
	int n = 0;
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof line, f))
		n += strstr(line, text) != NULL;
	if (f)
		fclose(f);
	return n;
}

/* Counts what the kernel has of a rank's listener: its local socket, and those at its port. What a connection
 * leaves for a minute when it ends at both sides (TIME_WAIT) is none. */
static int sockets_of(const char *endpoint)
{
	const char *unix_name = strstr(endpoint, " unix="), *port = strrchr(endpoint, '@');
	char name[40] = "@", listener[30], listener6[50];
	unsigned byte;
	for (const char *p = unix_name + 6; sscanf(p, "%2x", &byte) == 1 && *p != ' ' && strlen(name) < 38; p += 2)
		name[strlen(name)] = (char)byte;
	snprintf(listener, sizeof listener, ":%04X %08d:0000 0A", (unsigned)atoi(port + 1) & 0xffff, 0);
	snprintf(listener6, sizeof listener6, ":%04X %032d:0000 0A", (unsigned)atoi(port + 1) & 0xffff, 0);
	return lines("/proc/net/unix", name) + lines("/proc/net/tcp", listener) + lines("/proc/net/tcp6", listener6);
}

static void shifting(board *b, transport *t, int rank)
{
	size_t bytes = 3 << 20;
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char *out = calloc(1, bytes), *in = calloc(1, bytes);
	gradcomp_request s, r;
	for (int k = 0;; k++) {
		if (l->recv(l->ctx, (rank + b->n - 1) % b->n, in, bytes, &r, NULL) ||
		    l->send(l->ctx, (rank + 1) % b->n, out, bytes, &s, NULL) || l->wait(l->ctx, &r, NULL) ||
		    l->wait(l->ctx, &s, NULL))
			break;
		if (k == 2)
			atomic_fetch_add(&b->ready, 1);
	}
	channel_close(c);
	free(out);
	free(in);
}

static void all_killed(int cma)
{
	board *b = board_new(RANKS);
	int n = 0, open_doors = 0, named = 0, left = 0;
	double until = board_now() + 20;
	uint64_t ours[RANKS * INODES];
	b->options.cma = cma;
	b->body = shifting;
	board_fork(b);
	while (atomic_load(&b->ready) < RANKS && board_now() < until)
		usleep(1000);
	is_int(atomic_load(&b->ready), RANKS, "messages pass, %s each other's memory", cma ? "read out of" : "without");
	for (int r = 0; r < RANKS; r++) {
		char pid[20], maps[40];

		snprintf(pid, sizeof pid, "%d", (int)b->pid[r]);
		snprintf(maps, sizeof maps, "/proc/%s/maps", pid);
		n += mapped(pid, ours + n);
		named += lines(maps, "/dev/shm/");
		open_doors += sockets_of(b->endpoint[r]) > 1;
	}
	ok(n >= 2 * RANKS && mapping(ours, n) >= n, "they share memory: %d mappings", n);
	is_int(named, 0, "of which none is in /dev/shm");
	is_int(open_doors, RANKS, "and listen");
	for (int r = 0; r < RANKS; r++)
		kill(b->pid[r], SIGKILL);
	board_join(b);
	is_int(mapping(ours, n), 0, "all are killed: nobody maps it any more");
	for (int r = 0; r < RANKS; r++)
		left += sockets_of(b->endpoint[r]);
	is_int(left, 0, "no socket is left");
	board_free(b);
}

/* On one CPU, and free to leave it. */
static void begin_on(int cpu, const cpu_set_t *all)
{
	pin(cpu);
	sched_setaffinity(0, sizeof *all, all);
}

static void leaves_its_cpu(void)
{
	cpu_set_t all, now;
	int left = 0, kept = 0, n = 0;
	sched_getaffinity(0, sizeof all, &all);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &all))
			continue;
		n++;
		begin_on(cpu, &all);
		left += !thread_leave_cpu(cpu) && sched_getcpu() != cpu;
		sched_getaffinity(0, sizeof now, &now);
		kept += CPU_EQUAL(&all, &now);
		pin(cpu);
		kept += thread_leave_cpu(cpu) < 0 && !sched_getaffinity(0, sizeof now, &now) && CPU_COUNT(&now) == 1 &&
		        CPU_ISSET(cpu, &now);
		sched_setaffinity(0, sizeof all, &all);
	}
	if (n > 1)
		is_int(left, n, "a thread leaves any of %d CPUs", n);
	else
		skip("there is one CPU", "a thread leaves its CPU");
	is_int(kept, 2 * n, "and may run where it could before; one with a single CPU stays");
	ok(thread_leave_cpu(-1) < 0 && thread_leave_cpu(CPU_SETSIZE) < 0, "what is no CPU is not left");
}

/* Both ranks know all of a round, and so end with the same one: when they are apart. On a busy machine the kernel
 * may bring them together again; left to it alone this took up to 17,000 rounds. */
#define ROUNDS 3000

static void parting(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	cpu_set_t all;
	int first = 0, apart = 0;
	gradcomp_request s, r;
	sched_getaffinity(0, sizeof all, &all);
	while (!CPU_ISSET(first, &all))
		first++;
	begin_on(first, &all);
	for (int k = 0; k < ROUNDS && !apart; k++) {
		int32_t mine = sched_getcpu(), other = -1;

		if (l->recv(l->ctx, !rank, &other, sizeof other, &r, NULL) ||
		    l->send(l->ctx, !rank, &mine, sizeof mine, &s, NULL) || l->wait(l->ctx, &r, NULL) ||
		    l->wait(l->ctx, &s, NULL))
			break;
		apart = mine != other;
	}
	atomic_fetch_add(&b->ready, apart);
	channel_close(c);
}

static void on_one_cpu(void)
{
	board *b = board_new(2);
	cpu_set_t all;
	sched_getaffinity(0, sizeof all, &all);
	if (CPU_COUNT(&all) < 2) {
		skip("there is one CPU", "two ranks on one CPU part");
		board_free(b);
		return;
	}
	b->body = parting;
	board_fork(b);
	board_join(b);
	is_int(atomic_load(&b->ready), 2, "two ranks that wait for each other on one CPU part");
	board_free(b);
}

int main(void)
{
	ring_sizes();
	near_the_reader();
	leaves_its_cpu();
	on_one_cpu();
	all_killed(0);
	all_killed(1);
	return done_testing();
}
