/* Random input that is new in every run; a seed repeats one (splitmix64). One
 * generator a program. */
#ifndef CONFORMANCE_RANDOM_H
#define CONFORMANCE_RANDOM_H

#include <stdint.h>

void random_check_seed(uint64_t seed);
/* Returns a seed from the clock. */
uint64_t random_fresh_seed(void);
uint64_t random_check(void);
double random_check_uniform(void);
/* Draws a number that is roughly normal. */
float random_check_normal(void);

#endif
