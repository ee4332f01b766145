/* gradcomp.record: the model of a job as a file for gradcomp plan (planning.h). Rank 0
 * keeps the tensors of its largest reducer and how long the passes took, and writes them when
 * the job ends. */
#ifndef COST_MODEL_CAPTURE_H
#define COST_MODEL_CAPTURE_H

#include "gradcomp/gradcomp.h"
#include "base/log.h"

/* Fewer steps say too little. */
#define MODEL_CAPTURE_STEPS 5

typedef struct model_capture model_capture;

/* Makes the job's record, to which reducers go before they are freed. `path` may hold %j and %s, as a report's. Fails when
 * nothing could be written there. */
gradcomp_status model_capture_open(const char *path, gradcomp_job *job, gradcomp_error *err);
/* A reducer that goes. One whose parts are reducers of their own is none. NULL record: nothing is done. */
struct reducer;
void model_capture_reducer(model_capture *rec, struct reducer *r);
/* Writes the file, or says in the log why there is none; frees the record either way. NULL is fine. */
gradcomp_status model_capture_close(model_capture *rec, const log_sink *log, gradcomp_error *err);
void model_capture_abandon(model_capture *rec);

#endif
