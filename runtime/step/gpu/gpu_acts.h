/* A list of acts, which go in one pass over memory and words of the device (act_if()). */
#ifndef STEP_GPU_GPU_ACTS_H
#define STEP_GPU_GPU_ACTS_H

#include "gradcomp/operators.h"

#include <stdbool.h>

/* Begins with the operators and the stream; the rest is 0. Those that find something come first. */
typedef struct gpu_acts {
	const gradcomp_operators *ops;
	void *stream;
	const int *word; /* FILL goes by this one, and fills with 0 */
	uint32_t count, finders;
	gradcomp_act at[GRADCOMP_ACTS];
} gpu_acts;

/* *to = whether any of n words, `stride` bytes apart, is set; with `too` also whether one of the acts before this has
 * found something. Returns the number that others may go by. */
uint32_t gpu_acts_find(gpu_acts *a, int *to, const void *words, size_t stride, uint64_t n, bool too);
/* Of n numbers: they become those of `from`, or 0 where it is NULL, if *by is set, or where that is NULL, if act `found`
 * has found something. A pass that is full is put on the stream, and the next one finds the same again. */
void gpu_acts_move(gpu_acts *a, float *to, const float *from, uint64_t n, const int *by, uint32_t found);
/* They become 0 if the list's word is set. */
void gpu_acts_clear(gpu_acts *a, float *to, uint64_t n);
/* Puts what is left on the stream. */
void gpu_acts_run(gpu_acts *a);

#endif
