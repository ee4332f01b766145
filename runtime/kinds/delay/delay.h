/* Delayed gradient averaging: a reducer before another one, whose averages come `delay` steps
 * late, so that a step waits for the network only when it is that far behind.
 *
 * The reducer behind it takes one step at a time, as without a delay; compressors with error
 * memory, merge plans and `auto` work as they do. In front of it stand D slots, each
 * with a float a parameter, and one copy of the model in the declared types for the reducer
 * to work in: D + 1 times the model in all (halves are kept as floats, so a correction is
 * rounded once, when it is added to a gradient). Step t has slot t mod D:
 *
 *     ready(i)     the gradient stays where it is until the average of step t-D has come
 *     completer       slot = own gradient of step t, gradient += what the slot held; done
 *     submitter       copies own gradients to the reducer behind, one step after another
 *     arrived      (its thread) slot = average - own gradient: the step's correction
 *
 * Two threads, since the submitter waits for steps to end and the completer must not. Both sleep
 * until there is something to do. No step begins before the last has all its averages of D
 * steps ago, so at most D steps and the one being given are under way.
 *
 * A step with NaN or Inf makes its average NaN on all ranks, D steps later; its rank sees
 * its own gradient at once. */
#ifndef KINDS_DELAY_DELAY_H
#define KINDS_DELAY_DELAY_H

#include "gradcomp/gradcomp.h"

#define DELAY_MAX 64

/* Does what gradcomp_reducer_create() does, with options->delay of 1..DELAY_MAX, equal on all ranks. */
gradcomp_status delay_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                           const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err);

#endif
