#include "conformance/random.h"

#include <time.h>

static uint64_t state;

void random_check_seed(uint64_t seed)
{
	state = seed;
}

uint64_t random_fresh_seed(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return ((uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec) % 1000000000u;
}

uint64_t random_check(void)
{
	uint64_t z = state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

double random_check_uniform(void)
{
	return (double)(random_check() >> 11) * 0x1p-53;
}

float random_check_normal(void)
{
	double s = -6;
	for (int i = 0; i < 12; i++)
		s += random_check_uniform();
	return (float)s;
}
