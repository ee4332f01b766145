/* Folders and shards read on several threads and in children that are
 * forked meanwhile, with fewer descriptors than shards. */
#include "tests/support/tar_writer.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { SAMPLES = 120, THREADS = 4, CHILDREN = 6 };

static gradcomp_samples *opened[2];
static atomic_int bad, *right; /* the second shared with children */

/* Makes what sample i holds. */
static size_t content(uint64_t i, char out[4000])
{
	size_t n = i * 31 % 3900;
	memset(out, 'a' + (int)(i % 26), n);
	return n;
}

static void make(void)
{
	char path[64], data[4000];
	must(mkdir("tree", 0755), "mkdir");
	must(mkdir("tar", 0755), "mkdir");
	for (uint64_t i = 0; i < SAMPLES; i++) {
		const size_t n = content(i, data);
		if (i % 10 == 0) {
			snprintf(path, sizeof path, "tree/%02d", (int)i / 10);
			must(mkdir(path, 0755), path);
		}
		snprintf(path, sizeof path, "tree/%02d/%03d", (int)i / 10, (int)i);
		put_bytes(path, data, n);
		snprintf(path, sizeof path, "%03d.bin", (int)i);
		tar_member(path, '0', data, n);
		snprintf(path, sizeof path, "tar/%03d.tar", (int)i);
		tar_end(path);
	}
}

/* Reads all samples of both, from one on; the number of wrong ones. */
static int read_all(uint64_t from)
{
	char data[4000], want[4000];
	int wrong = 0;
	for (int k = 0; k < 2; k++)
		for (uint64_t at = 0; at < SAMPLES; at++) {
			uint64_t i = (from + at) % SAMPLES, bytes;
			size_t n = content(i, want);
			gradcomp_sample_info info = {.struct_size = sizeof info};
			wrong += gradcomp_samples_info(opened[k], i, &info, NULL) || info.bytes != n ||
			         gradcomp_samples_read(opened[k], i, 0, data, sizeof data, &bytes, NULL) ||
			         bytes != n || memcmp(data, want, n);
		}
	return wrong;
}

static void *reader(void *arg)
{
	for (int round = 0; round < 8; round++)
		atomic_fetch_add(&bad, read_all((uint64_t)(uintptr_t)arg * 29));
	return NULL;
}

int main(void)
{
	pthread_t threads[THREADS];
	right = mmap(NULL, sizeof *right, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(right == MAP_FAILED ? -1 : 0, "mmap");
	begin("samples-threads");
	make();
	few_files(100);
	opened[0] = open_as("tree", 0, NULL);
	opened[1] = open_as("tar", 0, NULL);
	if (!ok(opened[0] && opened[1], "a folder and shards"))
		return done_testing();
	for (uintptr_t i = 0; i < THREADS; i++)
		must(-pthread_create(&threads[i], NULL, reader, (void *)i), "pthread_create");
	for (int i = 0; i < CHILDREN; i++) {
		pid_t child = fork();
		if (!child) {
			atomic_fetch_add(right, !read_all(0));
			/* An end that ThreadSanitizer does not see: it would miss the parent's threads. */
			kill(getpid(), SIGKILL);
		}
		must(child < 0 || waitpid(child, NULL, 0) != child ? -1 : 0, "fork");
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	is_int(atomic_load(&bad), 0, "%d threads read what was written", THREADS);
	is_int(atomic_load(right), CHILDREN, "and so do children that are forked meanwhile");
	for (int k = 0; k < 2; k++)
		gradcomp_samples_close(opened[k]);
	return done_testing();
}
