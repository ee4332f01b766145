/* The share of a step that compression holds back: |e| / |u|, what stays in error memory
 * against what was to be sent. Read from a fixed run of numbers out of every RESIDUAL_EVERY,
 * u's while BEGIN has it in cache, e's in FINISH, and weighted by what each run stands for. */
#ifndef STEP_RESIDUAL_NORM_H
#define STEP_RESIDUAL_NORM_H

#include "step/engine.h"

#define RESIDUAL_RUN GRADCOMP_SAMPLE_RUN
#define RESIDUAL_EVERY GRADCOMP_SAMPLE_EVERY

/* |x|^2, or |x + more|^2, of the run that begins at element `at` of n, if one does. */
double residual_norm_run(const float *x, const float *more, uint64_t at, uint64_t n);
/* The compute thread's, when the bucket's last decode is over. */
void residual_norm_bucket(engine *eng, const bucket *b);
/* The same of one tensor whose memory's sum is `e`. */
void residual_norm_tensor(engine *eng, uint32_t tensor, double e);
/* When the step is over, before the next one begins. */
void residual_norm_step(engine *eng);

#endif
