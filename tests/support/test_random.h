/* Random numbers of a test, the same in every run: set draw_state first. */
#ifndef TESTS_SUPPORT_TEST_RANDOM_H
#define TESTS_SUPPORT_TEST_RANDOM_H

#include <stdint.h>

static uint64_t draw_state = 1;

/* From 0 to below 1. */
static inline double draw(void)
{
	draw_state = draw_state * 6364136223846793005u + 1442695040888963407u;
	return (double)(draw_state >> 11) / 9007199254740992.0;
}

/* From 1 to n. */
static inline uint32_t draw_up_to(uint32_t n)
{
	return 1 + (uint32_t)(draw() * n) % n;
}

#endif
