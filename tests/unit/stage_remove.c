/* One tree, removed by several at once: who evicts, who cleans up and who finds what the
 * dead left may all be at it. All succeed, and nothing of it stays. */
#include <pthread.h>

#include "tests/support/stage_fixture.h"

#define REMOVERS 4
#define ROUNDS 40

static pthread_barrier_t gate;
static int area;

static void *remover(void *arg)
{
	pthread_barrier_wait(&gate);
	*(int *)arg = dirwalk_remove(area, "tree") < 0 ? errno : 0;
	return NULL;
}

int main(void)
{
	int failed = 0, left = 0;
	bench_begin_in("/dev/shm");
	area = open(".", O_RDONLY | O_DIRECTORY);
	pthread_barrier_init(&gate, NULL, REMOVERS);
	for (int i = 0; i < ROUNDS; i++) {
		pthread_t t[REMOVERS];
		int result[REMOVERS];
		struct stat st;
		must(system("for d in a b/c/d/e f; do mkdir -p tree/$d; for n in 1 2 3 4 5; do echo $n "
		            ">tree/$d/$n; done; done; "
		            "chmod 500 tree/a tree/b/c tree/b")
		             ? -1
		             : 0,
		     "tree");
		for (int k = 0; k < REMOVERS; k++)
			must(pthread_create(&t[k], NULL, remover, &result[k]) ? -1 : 0, "thread");
		for (int k = 0; k < REMOVERS; k++) {
			pthread_join(t[k], NULL);
			failed += result[k] != 0;
			if (result[k])
				printf("# %s\n", strerror(result[k]));
		}
		left += fstatat(area, "tree", &st, AT_SYMLINK_NOFOLLOW) == 0;
	}
	is_int(failed, 0, "%d at once, %d times: none fails", REMOVERS, ROUNDS);
	is_int(left, 0, "and nothing stays");
	close(area);
	return done_testing();
}
