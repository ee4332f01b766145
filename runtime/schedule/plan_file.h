/* Plan files: the schedule of a model's steps, for --gradcomp-schedule=plan:file=FILE. */
#ifndef SCHEDULE_PLAN_FILE_H
#define SCHEDULE_PLAN_FILE_H

#include "schedule/step_plan.h"

typedef struct plan_file {
	char model[64];
	uint64_t hash; /* plan_hash() of all tensors, in backward order */
	uint32_t tensors, reserved0;
	uint64_t parameters;
	char *compressor, *collective; /* canonical SPECs that it was made for; owned */
	step_plan plan;
} plan_file;

/* Adds one tensor to the hash; the first one's `before` is 0. */
uint64_t plan_hash(uint64_t before, uint32_t ndim, const uint64_t *dims);

/* Strict, with file and line. On success *out is for plan_file_clear(). */
gradcomp_status plan_file_read(const char *path, plan_file *out, gradcomp_error *err);
gradcomp_status plan_file_write(const char *path, const plan_file *p, gradcomp_error *err);
void plan_file_clear(plan_file *p);

#endif
