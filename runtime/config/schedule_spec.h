/* What may be asked of a schedule: NAME[:key=value], as compressors and collectives are
 * named, from a table of the runtime's own. */
#ifndef CONFIG_SCHEDULE_SPEC_H
#define CONFIG_SCHEDULE_SPEC_H

#include "gradcomp/abi.h"

/* How gradients are merged into messages; schedule/merge.h says what each does. */
typedef enum schedule_method {
	SCHEDULE_WFBP,
	SCHEDULE_SINGLE,
	SCHEDULE_FIXED,
	SCHEDULE_PLAN, /* of a file */
	/* From here on plans are made from what the job measures. */
	SCHEDULE_MGWFBP,
	SCHEDULE_OMGS,
	SCHEDULE_AUTO /* the best of all by the simulator */
} schedule_method;

typedef struct schedule_spec {
	char *text; /* canonical; owned, like file */
	schedule_method method;
	uint64_t bytes; /* FIXED; 0: the settings reducer.first_bucket_bytes and reducer.bucket_bytes */
	char *file;     /* PLAN, else NULL */
} schedule_spec;

/* The text of a refusal lists what there is. */
gradcomp_status schedule_spec_parse(const char *text, schedule_spec *out, gradcomp_error *err);
void schedule_spec_clear(schedule_spec *s);

static inline int schedule_measures(schedule_method m)
{
	return m >= SCHEDULE_MGWFBP;
}

#endif
