/* Memory that is too small, values longer than the window, and how much memory there is
 * said to be. */
#include "tests/support/dataset_fixture.h"
#include "io/dataset/dataset_internal.h"
#include "tests/support/dir_entries.h"
#include "tests/support/tmpdir.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static const char *settings[] = {NULL, "transport.timeout=30", "gradcomp.log=error", NULL};
static const int two_nodes[] = {0, 1}, one_node[] = {0, 0};
static uint64_t samples_count, memory;
static uint32_t workers;
static char *spill;

static void epochs(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(samples_count);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	o.memory = memory;
	o.spill = spill;
	o.workers = workers;
	o.prefetch = 4;
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	for (uint64_t e = 0; e < 3; e++)
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << e;
	v->stats.struct_size = sizeof v->stats;
	gradcomp_dataset_get_stats(ds, &v->stats);
	v->wrong |= (v->stats.memory_used > v->stats.memory_limit || v->stats.memory_limit != memory) << 4;
	/* The spill file has no name. */
	v->wrong |= (spill && entries(spill) != 0) << 5;
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 6;
}

static gradcomp_dataset_stats run(const int *node, uint64_t n, uint64_t bytes, uint64_t keep, const char *what)
{
	gradcomp_dataset_stats sum = {0};
	samples_forget();
	all_samples->bytes = bytes;
	samples_count = n;
	memory = keep;
	processes_on(node);
	process_board *b = run_processes(2, settings, epochs, sizeof(dataset_result));
	ok(all_well(b) && samples_each(all_samples->seen, n, 3), "%s: every value right in 3 epochs", what);
	for (int r = 0; r < 2; r++) {
		const gradcomp_dataset_stats *s = &((dataset_result *)process_room(b, r))->stats;
		sum.local += s->local;
		sum.remote += s->remote;
		sum.loaded += s->loaded;
		sum.spilled += s->spilled;
		sum.unkept += s->unkept;
		sum.damaged += s->damaged;
		sum.wait_s += s->wait_s;
	}
	end_processes(b);
	return sum;
}

static void small(const char *directory)
{
	gradcomp_dataset_stats s;
	for (workers = 0; workers <= 2; workers += 2) {
		spill = NULL;
		s = run(one_node, 100, 20000, 1000000, "half of the values fit, no spill");
		ok(s.unkept >= 3 * 45 && s.local >= 2 * 45 && s.loaded + s.local == 300,
		   "what fits is made once, the rest each time (%d made, %d unkept)", (int)s.loaded, (int)s.unkept);
		s = run(two_nodes, 100, 20000, 400000, "the same over two nodes");
		ok(s.unkept > 100 && s.remote > 0,
		   "what an owner could not keep is made by who wants it (%d made, %d fetched)", (int)s.loaded,
		   (int)s.remote);
		spill = (char *)directory;
		s = run(one_node, 100, 20000, 1000000, "half of the values fit, the others are spilled");
		ok(samples_each(all_samples->made, 100, 1) && s.spilled >= 90 && !s.unkept,
		   "each made once, %d read from the file", (int)s.spilled);
		/* The window has room for what is on loan and what is ahead: without it a value that waits
		 * long enough would be made a second time. */
		s = run(two_nodes, 200, 20000, 1600000, "spilled, over two nodes");
		ok(samples_each(all_samples->made, 200, 1) && s.spilled && s.remote && !s.unkept,
		   "each made once, %d read from a file, %d fetched", (int)s.spilled, (int)s.remote);
	}
	is_int(entries(directory), 0, "nothing is left of it");
	spill = NULL;
	workers = 0;
}

/* Whoever has waited for 0.1 s while the window is full makes the value itself: on a machine that has other things
 * to do that may be so, but not more often. */
static void made_once(uint64_t n, const gradcomp_dataset_stats *s)
{
	uint64_t made = 0;
	for (uint64_t i = 0; i < n; i++)
		made += atomic_load(&all_samples->made[i]);
	ok(made >= n && (double)(made - n) <= s->wait_s / 0.1 && s->remote,
	   "each made once, %d more after %.3f s of waiting, %d fetched", (int)(made - n), s->wait_s, (int)s->remote);
}

/* Every filesystem is as the test says, in MiB. */
static struct {
	uint64_t size, left;
} disk = {4 << 20, 2 << 20};

int fstatvfs(int fd, struct statvfs *fs)
{
	(void)fd;
	*fs = (struct statvfs){.f_frsize = 1 << 20, .f_blocks = disk.size, .f_bavail = disk.left};
	return 0;
}

/* Returns what is said on standard error while half of the values are spilled, or cannot be. */
static const char *spilling(const char *what, gradcomp_dataset_stats *s)
{
	static char text[4096];
	FILE *said = tmpfile();
	int before = dup(STDERR_FILENO);
	dup2(fileno(said), STDERR_FILENO);
	*s = run(one_node, 100, 20000, 1000000, what);
	dup2(before, STDERR_FILENO);
	close(before);
	rewind(said);
	text[fread(text, 1, sizeof text - 1, said)] = 0;
	fclose(said);
	return text;
}

static void full(const char *directory)
{
	gradcomp_dataset_stats s;
	const char *said;
	settings[2] = "gradcomp.log=warn";
	spill = (char *)directory;
	disk.left = 1026;
	said = spilling("a disk of 4 TiB with 1026 MiB left", &s);
	ok(s.spilled >= 90 && !s.unkept && !*said, "what is over 1 GiB is used, and nothing said: \"%s\"", said);
	disk.left = 1023;
	said = spilling("1023 MiB left", &s);
	ok(!s.spilled && s.unkept >= 90, "no file is used, and %d values are not kept", (int)s.unkept);
	like(said, directory, "a warning names the directory");
	like(said, "has 1.1 GB free, and 1.1 GB are left to others", "and the space");
	disk.size = 1000;
	disk.left = 52;
	said = spilling("a disk of 1000 MiB with 52 MiB left", &s);
	ok(s.spilled >= 90 && !s.unkept && !*said, "what is over 5 %% is used, and nothing said: \"%s\"", said);
	disk.left = 50;
	said = spilling("50 MiB left", &s);
	like(said, "has 52.4 MB free, and 52.4 MB are left to others", "that is too little");
	settings[2] = "gradcomp.log=error";
	spill = NULL;
}

static void long_values(void)
{
	/* A window is an eighth of the memory. */
	gradcomp_dataset_stats s = run(two_nodes, 12, 900000, 8 << 20, "a value that nearly fills the window");
	made_once(12, &s);
	s = run(two_nodes, 12, 1200000, 8 << 20, "values longer than the window");
	ok(!s.remote && s.loaded > 12, "are made by who wants them (%d made)", (int)s.loaded);
	s = run(two_nodes, 100, 3000, 20000, "memory that leaves no window");
	ok(!s.remote && s.loaded > 100, "other nodes' values are made by who wants them (%d made)", (int)s.loaded);
}

/* Keeps more values on loan than the window holds. */
static void hoarding(gradcomp_job *job, int rank, process_board *b, void *room)
{
	enum { SAMPLES = 20 };
	gradcomp_dataset_options o = samples_options(SAMPLES);
	gradcomp_value_view view[SAMPLES];
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)b;
	o.memory = 2 << 20;
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	v->wrong |= samples_epoch(ds, 0, 0, &v->error) << 1;
	v->wrong |= (gradcomp_barrier(gradcomp_job_world(job), &v->error) != 0) << 2;
	for (int round = 0; round < 2 && rank == 0; round++) {
		for (uint64_t i = 0; i < SAMPLES; i++) {
			view[i] = (gradcomp_value_view){.struct_size = sizeof view[i]};
			v->wrong |= (gradcomp_dataset_get(ds, i, &view[i], &v->error) != 0) << 3;
		}
		for (uint64_t i = 0; i < SAMPLES; i++) {
			v->wrong |= !sample_right(&view[i], i) << 4;
			gradcomp_dataset_release(ds, &view[i]);
		}
	}
	v->stats.struct_size = sizeof v->stats;
	gradcomp_dataset_get_stats(ds, &v->stats);
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 5;
}

static void hoard(void)
{
	samples_forget();
	all_samples->bytes = 60000;
	processes_on(two_nodes);
	process_board *b = run_processes(2, settings, hoarding, sizeof(dataset_result));
	const gradcomp_dataset_stats *s = &((dataset_result *)process_room(b, 0))->stats;
	ok(all_well(b) && s->remote && s->loaded > 10,
	   "a program that keeps more on loan than the window holds goes on: %d fetched, %d made by itself",
	   (int)s->remote, (int)s->loaded - 10);
	end_processes(b);
}

static void wanting(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(1000);
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)b;
	o.memory = rank ? 1 << 20 : (uint64_t)1 << 50;
	v->status = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error);
}

static void too_much(void)
{
	processes_on(one_node);
	process_board *b = run_processes(2, settings, wanting, sizeof(dataset_result));
	for (int r = 0; r < 2; r++) {
		const dataset_result *v = process_room(b, r);
		is_int(v->status, GRADCOMP_ERR_RANGE, "more memory than the node has is refused, on rank %d", r);
		like(v->error.text, "1.1 PB", "the message has what was wanted,");
		like(v->error.text, "leaves", "what there is,");
		like(v->error.text, r ? "rank 0 on " : "dataset.memory", "and who wanted it, or what to change");
		ok(b->slot[r].left, "and the job goes on");
	}
	end_processes(b);
}

static void put(const char *root, const char *path, const char *text)
{
	char name[600], *slash;
	snprintf(name, sizeof name, "%s/%s", root, path);
	for (slash = name + strlen(root); (slash = strchr(slash + 1, '/'));) {
		*slash = 0;
		mkdir(name, 0700);
		*slash = '/';
	}
	FILE *f = fopen(name, "w");
	fputs(text, f);
	fclose(f);
}

static void available(const char *root)
{
	const char *what;
	put(root, "proc/meminfo", "MemTotal: 9999 kB\nMemAvailable:   1000 kB\n");
	is_int(mem_limit_available(root, &what), 1024000, "without control groups: MemAvailable");
	put(root, "proc/self/cgroup", "0::/job/step\n");
	put(root, "sys/fs/cgroup/job/step/memory.max", "max\n");
	put(root, "sys/fs/cgroup/job/step/memory.current", "5000\n");
	put(root, "sys/fs/cgroup/job/memory.max", "600000\n");
	put(root, "sys/fs/cgroup/job/memory.current", "300000\n");
	put(root, "sys/fs/cgroup/job/memory.stat", "anon 1\ninactive_file 100000\n");
	is_int(mem_limit_available(root, &what), 400000,
	       "version 2: the tightest of the groups, cached files not counted");
	like(what, "control group", "and it is named");
	put(root, "proc/self/cgroup", "5:cpu,cpuacct:/\n4:memory:/slurm/job\n");
	put(root, "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "500000\n");
	put(root, "sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "450000\n");
	put(root, "sys/fs/cgroup/memory/slurm/job/memory.stat", "total_inactive_file 20000\n");
	put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
	put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
	is_int(mem_limit_available(root, &what), 70000, "version 1: the same");
	put(root, "proc/self/cgroup", "4:memory:/elsewhere\n");
	is_int(mem_limit_available(root, &what), 1024000, "a group that cannot be seen from here limits nothing");
	put(root, "proc/self/cgroup", "\n::\nnonsense\n4:memory\n");
	is_int(mem_limit_available(root, &what), 1024000, "nor does what is no list of groups");
}

/* kB of the shared memory at `at` that this process sees by huge pages. */
static long huge_kb(const void *at)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	long kb = -1, found;
	bool inside = false;
	while (f && fgets(line, sizeof line, f)) {
		unsigned long first, last;
		if (sscanf(line, "%lx-%lx ", &first, &last) == 2)
			inside = first <= (uintptr_t)at && (uintptr_t)at < last;
		else if (inside && sscanf(line, "ShmemPmdMapped: %ld", &found) == 1)
			kb = found;
	}
	if (f)
		fclose(f);
	return kb;
}

/* Returns true when the kernel gives huge pages of shared memory to those who ask. */
static bool kernel_has_huge_pages(void)
{
	size_t bytes = 4 * HUGE_PAGE;
	int fd = memfd_create("test", MFD_CLOEXEC);
	char *space = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;
	bool has;
	if (fd < 0 || space == MAP_FAILED || ftruncate(fd, (off_t)bytes)) {
		printf("Bail out! no memory for huge pages: %s\n", strerror(errno));
		exit(1);
	}
	at = mmap(space + (-(uintptr_t)space & (HUGE_PAGE - 1)), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
	          fd, 0);
	has = at != MAP_FAILED;
	for (size_t i = 0; has && i < bytes; i += HUGE_PAGE) {
		at[i] = 1;
		has = !madvise(at + i, HUGE_PAGE, 25 /* MADV_COLLAPSE */);
		at[i + 1] = 1;
	}
	has = has && huge_kb(at) >= 4096;
	munmap(at, bytes);
	munmap(space, bytes + HUGE_PAGE);
	close(fd);
	return has;
}

static bool without_huge_pages;

static void paged_values(gradcomp_job *job, int rank, process_board *b, void *room)
{
	gradcomp_dataset_options o = samples_options(samples_count);
	gradcomp_value_view view = {.struct_size = sizeof view};
	dataset_result *v = room;
	gradcomp_dataset *ds;
	(void)rank;
	(void)b;
	o.memory = memory;
	if (without_huge_pages)
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	if ((v->wrong = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, &v->error) != 0))
		return;
	for (uint64_t e = 0; e < 2; e++)
		v->wrong |= samples_epoch(ds, e, 0, &v->error) << e;
	v->wrong |= (gradcomp_dataset_get(ds, 0, &view, &v->error) != 0) << 2;
	v->seconds = (double)huge_kb(view.data);
	gradcomp_dataset_release(ds, &view);
	v->wrong |= (gradcomp_dataset_free(ds, v->wrong ? NULL : &v->error) != 0) << 3;
}

static void pages(void)
{
	bool has = kernel_has_huge_pages();
	for (int without = 0; without < 2; without++) {
		samples_forget();
		all_samples->bytes = 60000 + (uint64_t)getpid() % 4999;
		samples_count = 120;
		memory = 8000001;
		without_huge_pages = without;
		processes_on(NULL);
		process_board *b = run_processes(1, settings, paged_values, sizeof(dataset_result));
		ok(all_well(b) && samples_each(all_samples->made, 120, 1), "every value right %s huge pages",
		   without ? "without" : "with");
		double kb = ((dataset_result *)process_room(b, 0))->seconds;
		if (without)
			ok(kb == 0, "which a process may do without");
		else
			ok(!has || kb >= 2048, "the values stand on them where the kernel has them: %.0f kB%s", kb,
			   has ? "" : " # SKIP it has none");
		end_processes(b);
	}
}

int main(void)
{
	char directory[100], root[100];
	settings[0] = plugin_path_setting();
	samples_begin();
	tmpdir_make("dataset");
	snprintf(directory, sizeof directory, "%s/spill", tmpdir);
	snprintf(root, sizeof root, "%s/root", tmpdir);
	mkdir(directory, 0700);
	mkdir(root, 0700);
	small(directory);
	full(directory);
	long_values();
	hoard();
	too_much();
	available(root);
	pages();
	return done_testing();
}
