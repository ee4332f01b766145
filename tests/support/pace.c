#include "tests/support/pace.h"

#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

#define REFERENCE_S 0.02 /* the time that TURNS take on a processor of 2020 */
#define TURNS 14500000u
#define THREADS_MAX 64

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void *loop(void *unused)
{
	volatile uint64_t end;
	uint64_t x = 1;
	for (uint32_t i = 0; i < TURNS; i++)
		x = x * 6364136223846793005u + 1442695040888963407u;
	end = x;
	(void)end;
	return unused;
}

double pace(void)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	int n = 0, most = processors < 1 ? 1 : processors < THREADS_MAX ? (int)processors : THREADS_MAX;
	double begin = now(), times;
	pthread_t thread[THREADS_MAX];
	while (n < most - 1 && !pthread_create(&thread[n], NULL, loop, NULL))
		n++;
	loop(NULL);
	while (n)
		pthread_join(thread[--n], NULL);
	times = (now() - begin) / REFERENCE_S;
	return times < 1 ? 1 : times;
}

bool in_time(double seconds, double limit)
{
	return seconds <= limit || seconds <= limit * pace();
}
