/* gradcomp.record: the model of a job as a file for gradcomp plan (gradcomp/model.h). Rank 0
 * keeps the tensors of its largest reducer and how long the passes took, and writes them when
 * the job ends. */
#ifndef RECORD_H
#define RECORD_H

#include "gradcomp/gradcomp.h"
#include "log.h"

/* Fewer steps say too little. */
#define RECORD_STEPS 5

typedef struct record record;

/* `path` may hold %j and %s, as a report's. Fails when nothing could be written there. */
gradcomp_status record_open(const char *path, record **out, gradcomp_error *err);
/* A reducer that goes. One whose parts are reducers of their own is none. NULL record: nothing is done. */
void record_reducer(record *rec, gradcomp_reducer *r);
/* Writes the file, or says in the log why there is none; frees the record either way. NULL is fine. */
gradcomp_status record_close(record *rec, const log_sink *log, gradcomp_error *err);
void record_abandon(record *rec);

#endif
