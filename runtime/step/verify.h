/* gradcomp.verify: what every step has made of gradients is looked at, on all ranks together, and
 * a step that is not as the contract of compressors (gradcomp/compressor.h) has it ends the job:
 *
 *     agreement      the averages of a tensor have the same bits on all ranks: their hashes are compared
 *     finite         of finite gradients come finite averages and error memory
 *     conservation   what goes into error memory and what comes out as the average is what went in:
 *                    sum_w (u_w - e'_w - a) = 0. Both sides are multiplied by a random vector of signs, the
 *                    same on all ranks, so that a number a tensor is compared, and not all of it
 *
 * Conservation is looked at where the host keeps the error memory; what a compressor with
 * GRADCOMP_TRAIT_OWN_MOMENTUM works on, or one that keeps none, the ABI does not tell. Ranks talk over a
 * channel of their own, since the collective may be what is wrong. */
#ifndef STEP_VERIFY_H
#define STEP_VERIFY_H

#include "step/engine.h"

typedef struct verify verify;

/* Opens eng->checks.verify, when the setting asks for it. All ranks call it, alike. */
gradcomp_status verify_open(engine *eng, gradcomp_error *err);
/* NULL is fine. */
void verify_close(verify *v);

/* The compute thread's. When u is in b->x; when the average is there, or a sum that is not finite,
 * and error memory is new; and when gradients are as the program gets them. */
void verify_input(engine *eng, const bucket *b);
void verify_output(engine *eng, const bucket *b);
void verify_result(engine *eng, const bucket *b);
/* The exchange thread's, when the step is over on this rank and none has begun. */
gradcomp_status verify_step(engine *eng, gradcomp_error *err);

#endif
