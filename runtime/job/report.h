/* The job's report: one JSON file (schema in doc/user/report.md), written by rank 0
 * when the job ends, by rename, so that a reader never sees half of it. Disk space for
 * it is taken when the job starts, so a full disk or a wrong path is an error
 * before the training and not after it. */
#ifndef JOB_REPORT_H
#define JOB_REPORT_H

#include "gradcomp/coder.h"
#include "job/slow_rank.h"
#include "transport/core/transport.h"

typedef struct outfile report;

typedef struct report_tensor {
	const char *name;
	uint64_t numel;
	const char *choice; /* the compressor's words for what was done with it */
	double error;       /* mean |e| / |u| over steps; negative: none was kept */
} report_tensor;

/* Tells what --gradcomp=auto did. Owned, like all that it points to but `why`. */
typedef struct report_candidate {
	char *spec;
	double predicted, measured; /* seconds a step; 0: not */
	int left_out;
} report_candidate;

typedef struct report_switch {
	uint64_t step;
	char *to;
	const char *why;
} report_switch;

typedef struct report_auto {
	char *decision;
	const char *why;
	double exposed; /* seconds a step, of the base */
	report_candidate *candidates;
	report_switch *switches;
	uint32_t ncandidates, nswitches;
} report_auto;

typedef struct report_bucket {
	uint32_t tensors, position;
	uint64_t numel;
} report_bucket;

/* How gradients were merged into messages. Seconds; 0: not known. Owned, like all that it
 * points to. */
typedef struct report_schedule {
	char *asked, *plan; /* the SPEC; whose plan is in force */
	char *fallback;     /* why it is not what was asked for; NULL: it is */
	report_bucket *buckets;
	uint32_t nbuckets, lag;
	uint32_t plans; /* made from measurements */
	int measured;   /* 1: the members below are known */
	double exchange_a, exchange_b, encode_a, encode_b, decode_a, decode_b;
	double predicted, predicted_exposed, fixed; /* seconds of a step: with this plan, and with fixed buckets */
	double step;                                /* the median of the last steps */
} report_schedule;

typedef struct report_reducer {
	const char *asked;                   /* the compressor's SPEC as it was typed */
	const char *compressor, *collective; /* canonical SPECs */
	int nranks;
	gradcomp_reducer_stats stats;
	double sums_s; /* a step's gradients as sums of 16-bit floats would take so long to exchange; 0: not timed */
	const report_tensor *tensors;
	uint32_t ntensors;
	uint32_t delay;            /* steps that averages may have come late */
	report_auto *tuner;        /* auto's; else NULL */
	report_schedule *schedule; /* NULL: not known */
} report_reducer;

/* Owned, like what it points to. */
typedef struct report_coder {
	char *name;
	char *asked;                   /* the compressor's SPEC as it was typed */
	char *compressor, *collective; /* canonical SPECs */
	int nranks;
	gradcomp_coder_stats stats;
} report_coder;

typedef struct report_link {
	const char *transport;   /* "shm", "tcp" */
	uint64_t connections;    /* those of this kind that this rank used */
	uint64_t sent, received; /* bytes */
} report_link;

typedef struct report_link_kind {
	const char *transport;
	uint64_t pairs;      /* pairs of ranks that this kind of link connects */
	const char *why_not; /* NULL when there are some */
} report_link_kind;

typedef struct report_job {
	const char *job_id, *step_id; /* Slurm's; NULL outside */
	int nranks, nnodes;
	const char *const *hosts; /* nranks of them */
	double wall_s;
	const report_reducer *reducers;
	uint32_t nreducers;
	const report_coder *coders;
	uint32_t ncoders;
	const report_link *links;
	uint32_t nlinks;
	const report_link_kind *link_kinds;
	uint32_t nlink_kinds;        /* 0: the job is too large to count its pairs of ranks */
	const char *const *link_map; /* nranks rows of nranks: the kind of link; NULL: too many to show */
	const network_row *networks; /* best first */
	uint32_t nnetworks;
	const char *failure;     /* NULL: ended well */
	const rank_times *times; /* of each rank; NULL: not known */
	slow_rank slow;          /* which of them holds up the others */
	const char *slow_host;
} report_job;

/* `path` may hold %j (job), %s (step). The file does not appear yet. */
gradcomp_status report_open(const char *path, report **out, gradcomp_error *err);
/* Writes and publishes; frees the report either way. */
gradcomp_status report_close(report *r, const report_job *job, gradcomp_error *err);
/* Frees without a trace. NULL is fine. */
void report_abandon(report *r);
/* Writes the one line for people, at most `capacity` bytes, no newline: "powersgd:rank=4 on 4 ranks of 4 nodes:
 * 450 steps, 26.1x fewer bytes (0.67 of 17.46 MB a step), encode 1.2 ms, exchange 8.1 ms, decode 0.9 ms, 35 %
 * hidden, error 62 %". */
void report_line(const report_job *job, char *out, size_t capacity);
/* The line about the rank that holds up the others; "" when there is none. */
void report_slow_line(const report_job *job, char *out, size_t capacity);
/* The line about a coder, for the first so many: "coder 'grads' block:bits=4 on 4 ranks: 120 reduce-scatters,
 * 5.9x fewer bytes (4.10 of 24.20 MB), exchange 812 ms, 35 % hidden". */
#define REPORT_CODER_LINES 4
void report_coder_line(const report_job *job, uint32_t coder, char *out, size_t capacity);

#endif
