/* Gathered payloads are padded to 8 bytes between ranks. Padding comes as zero, whatever the
 * sender's workspace held before: nothing of a process's memory is sent that is no payload. */
#include "tests/support/small_model.h"

#include "reducer/reducer.h"

enum { P = 3, STALE = 0x5a };

typedef struct seen {
	int failed[P];
	unsigned padding[P], stale[P]; /* bytes in what all ranks sent */
} seen;

static void look(const bucket *b, int rank, seen *s)
{
	for (int p = 0; p < P; p++) {
		const unsigned char *data = b->parts[p].data;

		for (uint64_t i = b->parts[p].bytes; i % 8; i++) {
			s->padding[rank]++;
			s->stale[rank] += data[i] != 0;
		}
	}
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	seen *s = arg;
	gradcomp_error err = {0};
	model m;
	(void)nranks;
	s->failed[rank] = model_open(&m, gradcomp_job_world(job), "threshold:t=0.1", 1 << 20, &err);
	if (s->failed[rank]) {
		printf("# rank %d: %s\n", rank, err.text);
		return;
	}
	for (int step = 0; !s->failed[rank] && step < 3; step++) {
		for (int k = 0; step && k < REDUCER_WORKSPACES; k++) {
			scratch_buf *a = &reducer_of(m.red)->workspaces[k].gathered;

			if (a->p)
				memset(a->p, STALE, a->bytes);
		}
		s->failed[rank] = model_step(&m, rank, step, &err);
		if (step && !s->failed[rank])
			look(&reducer_of(m.red)->eng.list.buckets[0], rank, s);
	}
	if (s->failed[rank])
		printf("# rank %d: %s\n", rank, err.text);
	model_close(&m);
}

int main(void)
{
	const char *const settings[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	seen s = {0};
	model_seed();
	run_ranks(P, settings, body, &s);
	for (int rank = 0; rank < P; rank++)
		ok(!s.failed[rank] && s.padding[rank] && !s.stale[rank],
		   "rank %d: of %u bytes of padding in two steps none is left of what was there (%u)", rank,
		   s.padding[rank], s.stale[rank]);
	return done_testing();
}
