/* A schedule is asked for as NAME[:key=value], like compressors and collectives are named, from a table of the
 * runtime's own. */
#ifndef CONFIG_SCHEDULE_SPEC_H
#define CONFIG_SCHEDULE_SPEC_H

#include "config/spec.h"

/* How gradients are merged into messages; schedule/merge.h says what each does. */
typedef enum schedule_method {
	SCHEDULE_WFBP,
	SCHEDULE_SINGLE,
	SCHEDULE_FIXED,
	SCHEDULE_PLAN, /* read from a file */
	/* From here on plans are made from what the job measures. */
	SCHEDULE_MGWFBP,
	SCHEDULE_OMGS,
	SCHEDULE_AUTO,          /* the best of all by the simulator */
	SCHEDULE_MGWFBP_GREEDY, /* by the published rules */
	SCHEDULE_OMGS_GREEDY
} schedule_method;

/* The first bucket is small, so that sending starts early. This is what PyTorch's DistributedDataParallel has:
 * where its buckets and these are the same, gradients are reduced in place. */
#define SCHEDULE_FIRST_BYTES ((uint64_t)1 << 20)

typedef struct schedule_spec {
	char *text; /* canonical; owned, like file */
	schedule_method method;
	uint64_t bytes; /* FIXED; 0: the setting reducer.bucket_bytes, the first SCHEDULE_FIRST_BYTES at most */
	char *file;     /* PLAN, else NULL */
} schedule_spec;

/* The schedule that a SPEC names, whose table spec_parse() takes; NULL: there is none, and the error
 * lists what there is. */
const gradcomp_plugin_info *schedule_spec_info(const char *text, gradcomp_error *err);
/* Reads a SPEC that was parsed with that table. */
gradcomp_status schedule_spec_read(const gradcomp_plugin_info *info, const spec *s, schedule_spec *out,
                                   gradcomp_error *err);
/* Does all three together. */
gradcomp_status schedule_spec_parse(const char *text, schedule_spec *out, gradcomp_error *err);
void schedule_spec_clear(schedule_spec *s);

/* Bytes of the first bucket, of a SPEC without bytes. */
static inline uint64_t schedule_first_bytes(uint64_t bucket_bytes)
{
	return bucket_bytes < SCHEDULE_FIRST_BYTES ? bucket_bytes : SCHEDULE_FIRST_BYTES;
}

static inline int schedule_measures(schedule_method m)
{
	return m >= SCHEDULE_MGWFBP;
}

#endif
